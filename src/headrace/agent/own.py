"""An agent of one's own: an async generator that says what happens.

    @as_agent(name="greeter", description="Says hello")
    async def greeter(context):
        yield "Hello, "
        yield context.question

A text is a `text.delta`; any other event is recorded as it is. A `RunFinished` ends the run with what it says;
without one the run is completed, and its output is the text that was yielded, by an earlier worker too.
"""

import contextlib
import inspect
from collections.abc import AsyncGenerator, Callable

from headrace.agent.port import RunContext
from headrace.errors import AgentFailed, ConfigError
from headrace.events import Event, RunErrored, RunFinished, TextDelta

Body = Callable[[RunContext], AsyncGenerator[Event | str, None]]


class OwnAgent:
    """An AgentPort made of an async generator function."""

    def __init__(
        self, body: Body, *, name: str, description: str, resumable: bool = False, needs_engine: bool = True
    ) -> None:
        self.name = name
        self.description = description
        self.resumable = resumable
        self.needs_engine = needs_engine
        self._body = body

    async def run(self, context: RunContext) -> RunFinished:
        said = [context.state.text]
        async with contextlib.aclosing(self._body(context)) as happening:
            async for event in happening:
                if isinstance(event, str):
                    event = TextDelta(text=event)
                if isinstance(event, RunFinished):
                    return event
                _record(self.name, context, event)
                if isinstance(event, TextDelta):
                    said.append(event.text)
        return RunFinished(status="completed", output="".join(said))


def as_agent(
    *,
    name: str | None = None,
    description: str | None = None,
    resumable: bool = False,
    needs_engine: bool = True,
) -> Callable[[Body], OwnAgent]:
    """Make an agent of an async generator function. `resumable` says that it goes on from `context.state`,
    `needs_engine` false that it never asks `context.engine`, so that none need be started for it.

    Raises:
        ConfigError: it is not an async generator function.
    """

    def make(body: Body) -> OwnAgent:
        if not inspect.isasyncgenfunction(body):
            raise ConfigError(
                f"The agent {body.__name__} is not an async generator function.",
                hint="Write `async def` and `yield` what happens: texts and events.",
            )
        about = description if description is not None else (inspect.getdoc(body) or "").partition("\n")[0]
        return OwnAgent(
            body, name=name or body.__name__, description=about, resumable=resumable, needs_engine=needs_engine
        )

    return make


def _record(name: str, context: RunContext, event: Event) -> None:
    if isinstance(event, RunErrored) or not isinstance(event, Event):
        raise AgentFailed(
            f"The agent {name} yielded {type(event).__name__}, which is not its to say.",
            hint="Yield texts, events and at last a RunFinished; raise an error from headrace.errors to fail.",
        )
    context.emit(event)
