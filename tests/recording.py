"""An Emit in memory: what an agent recorded, and which of it was durable when."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar, cast

from headrace.agent.port import RunContext
from headrace.engine.port import Capabilities, Chunk, Engine, ModelRequest, ToolCallPart
from headrace.events import (
    Event,
    Record,
    RunStarted,
    TextDelta,
    ThinkingDelta,
    ToolCallEnded,
    ToolCallStarted,
    ToolProgress,
    ToolResult,
    TurnFinished,
    TurnStarted,
    event_type,
)
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

    def calls(self) -> list[str]:
        """The ids of the calls in the order in which they began."""
        return [event.call_id for event in self.of(ToolCallStarted)]

    def number(self, call_id: str | None) -> int:
        """Which call it is, counted from 0."""
        return self.calls().index(call_id or "")

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


class LiveEngine:
    """An engine that says what an async generator yields, so that a test decides when the next chunk comes."""

    name = "live"
    model = "live-1"
    capabilities = Capabilities(tools=True, json_schema=True, grammar=True, thinking=True)

    def __init__(self, speak: Callable[[ModelRequest], AsyncGenerator[Chunk, None]]) -> None:
        self.requests: list[ModelRequest] = []
        self.open_now = 0
        self._speak = speak

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[Chunk]]:
        self.requests.append(request)
        self.open_now += 1
        try:
            async with aclosing(self._speak(request)) as chunks:
                yield chunks
        finally:
            self.open_now -= 1

    async def __aenter__(self) -> "LiveEngine":
        return self

    async def __aexit__(self, *exc: object) -> None: ...


def tool_call(index: int, name: str, arguments: str = "{}") -> ToolCallPart:
    """A whole call in one part, with an id as from a server that counts anew in each answer."""
    return ToolCallPart(index=index, call_id=f"c{index}", name=name, arguments=arguments)


def assert_well_formed(events: Sequence[Event], *, ended: bool = True) -> None:
    """What every run's records promise, whatever happened in it. `ended`: nothing may be left open."""
    turns: dict[int, str] = {}
    calls: dict[str, str] = {}
    for event in events:
        if isinstance(event, TurnStarted):
            assert event.turn not in turns, f"turn {event.turn} began twice"
            assert all(state == "finished" for state in turns.values()), "two turns at once"
            turns[event.turn] = "begun"
        elif isinstance(event, TurnFinished):
            assert turns[event.turn] == "begun", f"turn {event.turn} ended twice"
            turns[event.turn] = "finished"
        elif isinstance(event, TextDelta | ThinkingDelta):
            assert "begun" in turns.values(), "text outside a turn"
        elif isinstance(event, ToolCallStarted):
            assert event.call_id not in calls
            calls[event.call_id] = "begun"
        elif isinstance(event, ToolCallEnded):
            assert calls[event.call_id] == "begun"
            calls[event.call_id] = "ended"
        elif isinstance(event, ToolProgress):
            assert calls[event.call_id] == "ended"
        elif isinstance(event, ToolResult):
            assert calls[event.call_id] in ("begun", "ended"), f"{event.call_id} has two results"
            assert event.error is not None or calls[event.call_id] == "ended", "a result without arguments"
            calls[event.call_id] = "answered"
    if ended:
        assert set(turns.values()) <= {"finished"}
        assert set(calls.values()) <= {"answered"}
