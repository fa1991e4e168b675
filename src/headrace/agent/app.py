"""What `headrace serve module:app` serves: agents, and the engine they share."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from headrace.agent.port import AgentPort
from headrace.engine.port import Engine
from headrace.errors import ConfigError

Progress = Callable[[str, int, int], None]
"""(what, done, total): how far a long first step has come."""


@runtime_checkable
class Preparing(Protocol):
    """An agent with something to do before its first run, such as building an index."""

    async def prepare(self, progress: Progress) -> None: ...


@runtime_checkable
class Warming(Protocol):
    """An agent that can make its first answers sooner, such as by letting the engine read what all prompts share."""

    async def warm(self, engine: Engine | None) -> None:
        """Beside the first requests, with the server's engine. What it raises is logged: it costs nobody an answer."""
        ...


class App:
    """One or more agents. The first one answers when a request names none.

    `engine` is what agents without one of their own use; None takes the configured one (`engine.url`), or else the
    embedded model.
    """

    def __init__(self, *agents: AgentPort, engine: Engine | None = None) -> None:
        if not agents:
            raise ConfigError("An App needs an agent.", hint="App(Agent(name=…, instructions=…)).")
        self.agents = {agent.name: agent for agent in agents}
        self.engine = engine
        if len(self.agents) < len(agents):
            raise ConfigError("Two agents have the same name.", hint="Names are how requests choose an agent.")

    @property
    def needs_engine(self) -> bool:
        """Whether any agent relies on the server's engine."""
        return any(_needs_engine(agent) for agent in self.agents.values())

    @property
    def commits_first(self) -> frozenset[str]:
        """The names of the agents that say so by `commits_first = True`: before their first `commit` has returned they
        do nothing that the world could notice, so they may begin before their run is durable."""
        return frozenset(name for name, agent in self.agents.items() if _commits_first(agent))

    @property
    def own_engines(self) -> list[Engine]:
        """The engines that agents brought with them, each once."""
        engines = [getattr(agent, "engine", None) for agent in self.agents.values()]
        return list({id(engine): engine for engine in engines if engine is not None}.values())


def _commits_first(agent: AgentPort) -> bool:
    """A promise about `run`: a class that has another `run` than its parent's has to give it itself."""
    for place in (agent, *type(agent).__mro__):
        said = getattr(place, "__dict__", {})
        if "run" in said or "commits_first" in said:
            return bool(said.get("commits_first", False))
    return False


def _needs_engine(agent: AgentPort) -> bool:
    """An agent says so by `needs_engine`; otherwise it does unless it has an `engine` of its own."""
    needs: bool = getattr(agent, "needs_engine", getattr(agent, "engine", None) is None)
    return needs


def as_app(target: object) -> App:
    """An App of what `module:name` holds: an App, an agent, or a list of agents.

    Raises:
        ConfigError: anything else.
    """
    if isinstance(target, App):
        return target
    agents: Sequence[object] = target if isinstance(target, (list, tuple)) else [target]
    if all(callable(getattr(agent, "run", None)) and hasattr(agent, "name") for agent in agents):
        return App(*agents)  # type: ignore[arg-type]
    raise ConfigError(
        f"This is a {type(target).__name__}, not an app.", hint="Serve an App(...), an Agent, or a list of agents."
    )
