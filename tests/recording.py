"""An Emit in memory: what an agent recorded, and which of it was durable when."""

from collections.abc import Sequence
from typing import Any, TypeVar, cast

from headrace.agent.port import RunContext
from headrace.engine.port import Engine
from headrace.events import Event, Record, RunStarted, event_type
from headrace.messages import Message, ToolSpec
from headrace.state import RunState, fold, initial

E = TypeVar("E", bound=Event)


class Recording:
    """Durable up to `durable`, which only a commit moves: what an agent has emitted since, a crash would forget."""

    def __init__(self, earlier: Sequence[Event] = ()) -> None:
        self.events: list[Event] = list(earlier)
        self.durable = len(self.events)

    @property
    def seq(self) -> int:
        return len(self.events)

    def emit(self, event: Event) -> None:
        self.events.append(event)

    async def commit(self, *events: Event) -> None:
        self.events += events
        self.durable = len(self.events)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    def types(self) -> list[str]:
        return [event_type(event) for event in self.events]

    def state(self, upto: int | None = None) -> RunState:
        events = self.events[:upto]
        records = [Record(run_id="r1", seq=at, ts=1000 + at, event=cast(Any, e)) for at, e in enumerate(events, 1)]
        return fold(records, initial("r1"))


def started(question: str = "Hi", **more: Any) -> RunStarted:
    return RunStarted(agent="a", thread_id="t1", input=(Message(role="user", content=question),), **more)


def begin(
    engine: Engine | None,
    *,
    earlier: Sequence[Event] = (),
    question: str = "Hi",
    options: dict[str, Any] | None = None,
    client_tools: tuple[ToolSpec, ...] = (),
    history: tuple[Message, ...] = (),
    deadline: float | None = None,
) -> tuple[Recording, RunContext]:
    """A run as the supervisor would hand it over: just started, or after `earlier` records."""
    first = started(question, options=options or {}, client_tools=client_tools)
    out = Recording([first, *earlier])
    return out, RunContext(state=out.state(), history=history, out=out, engine=engine, deadline=deadline)
