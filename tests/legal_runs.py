"""Random runs that a log would accept: every order of events that an agent of ours, or one's own, may produce."""

from collections.abc import Sequence

from hypothesis import strategies as st

from headrace import events as e
from headrace.events import Event, Record
from headrace.messages import Message, ToolSpec, Usage

RUN_ID = "01939bdc-7c1e-7a3b-8f00-0123456789ab"
STARTED_TS = 1_764_424_800_123
CLIENT_TOOL = ToolSpec(name="look_up", description="Look it up", parameters={"type": "object", "properties": {}})

_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(
    ['"', "\\", "\n", "\u2028", "語"]
)


def started(**changes: object) -> e.RunStarted:
    fields = {
        "agent": "docs",
        "thread_id": "t1",
        "input": (Message(role="user", content="Why?"),),
        "client_tools": (CLIENT_TOOL,),
        **changes,
    }
    return e.RunStarted(**fields)  # type: ignore[arg-type]


def recorded(events: Sequence[Event]) -> list[Record]:
    return [
        Record(run_id=RUN_ID, seq=i, ts=STARTED_TS + 10 * i, event=event)  # type: ignore[arg-type]
        for i, event in enumerate(events, 1)
    ]


@st.composite
def runs(draw: st.DrawFn, max_moves: int = 14) -> list[Record]:
    """The records of a run, with its terminal one in most cases."""
    run = _Run(draw)
    for move in draw(st.lists(st.sampled_from(_MOVES), max_size=max_moves)):
        move(run)
    if draw(st.integers(0, 9)):
        run.end()
    return recorded(run.events)


class _Run:
    """A run so far, and the moves that are legal next."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.events: list[Event] = [started()]
        self.turn = 0
        self.open = False
        self.called = False
        self.calls = 0
        self.sources = 0

    def say(self) -> None:
        for _ in range(self.draw(st.integers(1, 3))):
            self.events.append(e.TextDelta(text=self.draw(_text)))

    def think(self) -> None:
        self.events.append(e.ThinkingDelta(text=self.draw(_text)))

    def start_turn(self) -> None:
        self.finish_turn()
        self.turn += 1
        self.open, self.called = True, False
        self.events.append(e.TurnStarted(turn=self.turn, model="m", engine="scripted"))

    def finish_turn(self) -> None:
        if not self.open:
            return
        reason = self.draw(st.sampled_from(["stop", "length", "tool_calls", "cancelled", "interrupted", "error"]))
        self.open = False
        self.events.append(e.TurnFinished(turn=self.turn, finish_reason=reason, usage=Usage(output_tokens=2)))

    def retract(self) -> None:
        """Void what the turn has said; sometimes the whole turn begins again, as after a crash."""
        if self.called:
            return
        self.events.append(e.TextRetracted(turn=self.turn, reason="failed over"))
        if self.open and self.draw(st.booleans()):
            self.again()

    def go_on(self) -> None:
        if self.open and not self.called:
            self.events.append(e.TurnContinued(turn=self.turn, reason="engine_died"))

    def again(self) -> None:
        if self.open and not self.called:
            if self.draw(st.booleans()):
                self.events.append(e.RunReleased(worker="w1"))
            self.events.append(e.RunRecovered(worker="w2", after_seq=len(self.events)))
            self.events.append(e.TurnStarted(turn=self.turn, model="m", engine="other"))

    def call(self) -> None:
        if not self.open:
            return
        self.calls += 1
        call_id, name = f"call_{self.calls}", self.draw(st.sampled_from(["look_up", "clock"]))
        self.events.append(e.ToolCallStarted(call_id=call_id, name=name, turn=self.turn))
        kind = self.draw(st.sampled_from(["given up", "refused", "called"]))
        if kind == "refused":
            fault = e.ToolFault(code="invalid_arguments", message="no JSON")
            self.events.append(e.ToolResult(call_id=call_id, error=fault))
        if kind != "called":
            return
        self.called = True
        self.events.append(e.ArgsDelta(call_id=call_id, delta='{"q"'))
        self.events.append(e.ToolCallEnded(call_id=call_id, arguments={"q": self.draw(_text), "n": [1, None]}))
        if name == "clock":
            self.events.append(e.ToolResult(call_id=call_id, result="12:00"))

    def cite(self) -> None:
        self.sources += self.draw(st.integers(0, 1))
        url = self.draw(st.sampled_from([None, "https://example.org/a", "/docs/a"]))
        source = e.SourceCited(id=f"s{self.sources}", title="A", url=url, path="a.md", text=self.draw(_text))
        self.events.append(source)

    def other(self) -> None:
        """What these dialects do not show."""
        steer = e.SteerReceived(steer_id="x", text="shorter")
        hidden: list[Event] = [
            e.RunQueued(position=2),
            e.NodeStarted(node="retrieve"),
            e.CancelRequested(),
            steer,
            e.InputRequested(input_id="i", kind="question"),
            e.InputReceived(input_id="i", value=1),
        ]
        self.events.append(self.draw(st.sampled_from(hidden)))

    def end(self) -> None:
        self.finish_turn()
        if self.draw(st.booleans()):
            code = self.draw(st.sampled_from(["engine_died", "engine_overloaded", "context_overflow", "agent_failed"]))
            self.events.append(e.RunErrored(code=code, message="It broke.", hint="Ask again."))
            return
        self.events.append(
            e.RunFinished(
                status=self.draw(st.sampled_from(["completed", "completed", "cancelled", "stopped_early"])),
                output=self.draw(st.sampled_from(["", "whole"])),
                finish_reason=self.draw(st.sampled_from(["stop", "length", "content_filter", "tool_calls"])),
                usage=Usage(input_tokens=3, output_tokens=5, cached_tokens=1, reasoning_tokens=1),
            )
        )


_MOVES = [
    _Run.say,
    _Run.say,
    _Run.think,
    _Run.start_turn,
    _Run.finish_turn,
    _Run.retract,
    _Run.again,
    _Run.go_on,
    _Run.call,
    _Run.call,
    _Run.cite,
    _Run.other,
]
