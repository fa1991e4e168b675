"""What a run is at some seq: plain values, nothing that decides."""

from typing import Any, Literal

import msgspec

from headrace import events as e
from headrace.messages import Message, Timing, ToolSpec, Usage

Status = Literal["queued", "running", "waiting", "completed", "cancelled", "stopped_early", "failed"]
ENDED: frozenset[str] = frozenset({"completed", "cancelled", "stopped_early", "failed"})


class Turn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One engine answer. `continued` counts the cuts after which what stands now went on; text that was taken back has
    none."""

    turn: int
    model: str
    engine: str
    started_seq: int
    text: str = ""
    thinking: str = ""
    text_deltas: int = 0
    thinking_deltas: int = 0
    retracted: int = 0
    continued: int = 0
    finish_reason: str | None = None
    usage: Usage = Usage()
    timing: Timing = Timing()


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`arguments` is None until they are whole; `done` is true once there is a result or an error."""

    call_id: str
    name: str
    turn: int
    arguments: dict[str, Any] | None = None
    started_ts: int = 0
    progress: Any = None
    done: bool = False
    result: Any = None
    error: e.ToolFault | None = None
    ms: float = 0.0
    source: str = "ran"


class Item(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An unbroken piece of what a client was shown: text, thinking, or a call of one of its own tools.

    `start` is its first character in the turn's text (or thinking), `sources` how many sources had been cited when
    it began. It is `closed` once another item has begun, and `void` once it was taken back, which also ends it. Items
    are never removed: dialects that number what they send count them.
    """

    kind: Literal["text", "thinking", "call"]
    turn: int
    start: int = 0
    sources: int = 0
    call_id: str | None = None
    closed: bool = False
    void: bool = False


class Node(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    node: str
    needs: tuple[str, ...] = ()
    started_ts: int = 0
    status: str = "running"
    ms: float = 0.0
    result: Any = None
    error: e.ToolFault | None = None


class Input(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    input_id: str
    kind: str
    prompt: str = ""
    schema: dict[str, Any] = msgspec.field(default_factory=dict)
    call_id: str | None = None
    arguments_hash: str | None = None
    received: bool = False
    value: Any = None


class Steer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`status` is received, applied or returned; `turn` is the first turn that read it."""

    steer_id: str
    text: str
    mode: str
    status: str = "received"
    turn: int | None = None
    reason: str | None = None


class RunState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run as of record `seq`. Times are Unix milliseconds.

    `deltas` counts every text and thinking delta there ever was; with `items` it lets a dialect know its own sequence
    numbers from a snapshot. `crashes` counts the workers that were lost in a row without the run getting further;
    `released` says that the last one left of its own accord.
    """

    run_id: str
    status: Status
    seq: int = 0
    agent: str = ""
    thread_id: str = ""
    input: tuple[Message, ...] = ()
    model: str | None = None
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    client_tools: tuple[ToolSpec, ...] = ()
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    created_ts: int = 0
    ended_ts: int | None = None
    queue_position: int | None = None
    turns: tuple[Turn, ...] = ()
    items: tuple[Item, ...] = ()
    deltas: int = 0
    tool_calls: tuple[ToolCall, ...] = ()
    nodes: tuple[Node, ...] = ()
    sources: tuple[e.SourceCited, ...] = ()
    routes: tuple[e.RouteChosen, ...] = ()
    cache_hits: tuple[e.CacheHit, ...] = ()
    inputs: tuple[Input, ...] = ()
    steers: tuple[Steer, ...] = ()
    recoveries: int = 0
    crashes: int = 0
    released: bool = False
    cancel_requested: bool = False
    output: str = ""
    finish_reason: str | None = None
    usage: Usage = Usage()
    timing: Timing = Timing()
    error: e.RunErrored | None = None

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    @property
    def text(self) -> str:
        """Everything said and not retracted, over all turns."""
        return "".join(turn.text for turn in self.turns)


def initial(run_id: str) -> RunState:
    """A run before its first record."""
    return RunState(run_id=run_id, status="queued")
