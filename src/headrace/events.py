"""Everything that can happen in a run.

An event is a past fact. The log gives it a `seq` and a stamp and it is a record, which never changes.
Every event but `run.started` is written by the run's owner, save the three requests of clients
(`cancel.requested`, `steer.received`, `input.received`). PROTOCOL.md lists what each one means to a client.
"""

from typing import Any, Literal, get_args

import msgspec

from headrace.messages import Message, Timing, ToolSpec, Usage


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """Base of all events."""


class RunStarted(Event, frozen=True, kw_only=True, tag="run.started"):
    """`options` are model parameters (`temperature`, `max_tokens` …); `client_tools` are run by the client."""

    agent: str
    thread_id: str
    input: tuple[Message, ...]
    model: str | None = None
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    client_tools: tuple[ToolSpec, ...] = ()
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)


class RunQueued(Event, frozen=True, kw_only=True, tag="run.queued"):
    """The run waits for a place, its own or one at its engine; `position` counts from 1, and 0 says that the wait is
    over, where no `turn.started` follows to say so. May repeat."""

    position: int


class RunRecovered(Event, frozen=True, kw_only=True, tag="run.recovered"):
    """Another worker, or the same one after a restart, went on with this run after `after_seq`."""

    worker: str
    after_seq: int


class RunReleased(Event, frozen=True, kw_only=True, tag="run.released"):
    """`worker` is leaving and has given the run up unfinished; nothing went wrong, and another one may go on."""

    worker: str


class TurnStarted(Event, frozen=True, kw_only=True, tag="turn.started"):
    """One engine answer begins. Turns count from 1."""

    turn: int
    model: str
    engine: str


class TurnFinished(Event, frozen=True, kw_only=True, tag="turn.finished"):
    """`finish_reason`: stop, length, tool_calls, content_filter, cancelled, interrupted, error."""

    turn: int
    finish_reason: str
    usage: Usage = Usage()
    timing: Timing = Timing()


class ThinkingDelta(Event, frozen=True, kw_only=True, tag="thinking.delta"):
    text: str


class TextDelta(Event, frozen=True, kw_only=True, tag="text.delta", gc=False):
    """Always whole characters."""

    text: str


class TextRetracted(Event, frozen=True, kw_only=True, tag="text.retracted"):
    """What `turn` has streamed so far is void; clients drop it."""

    turn: int
    reason: str


class TurnContinued(Event, frozen=True, kw_only=True, tag="turn.continued"):
    """An answer of `turn` was cut, and the model goes on after the text that stands: nothing is void."""

    turn: int
    reason: str


class ToolCallStarted(Event, frozen=True, kw_only=True, tag="tool_call.started"):
    call_id: str
    name: str
    turn: int


class ArgsDelta(Event, frozen=True, kw_only=True, tag="args.delta"):
    """A raw fragment of a call's JSON arguments. Sent to clients that ask for it (`?types=`)."""

    call_id: str
    delta: str


class ToolCallEnded(Event, frozen=True, kw_only=True, tag="tool_call.ended"):
    """Parsed and validated arguments. Durable before the tool starts."""

    call_id: str
    arguments: dict[str, Any]


class ToolProgress(Event, frozen=True, kw_only=True, tag="tool.progress"):
    call_id: str
    data: Any


class ToolFault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a call or a node has no result. `code` is one of errors.py."""

    code: str
    message: str
    hint: str | None = None


class ToolResult(Event, frozen=True, kw_only=True, tag="tool.result"):
    """`result` or `error`, never both. `source` says where it came from."""

    call_id: str
    result: Any = None
    error: ToolFault | None = None
    ms: float = 0.0
    source: Literal["ran", "cache", "speculated", "unknown_outcome"] = "ran"


class NodeStarted(Event, frozen=True, kw_only=True, tag="node.started"):
    node: str
    needs: tuple[str, ...] = ()


class NodeFinished(Event, frozen=True, kw_only=True, tag="node.finished"):
    """`fallback` means the node failed or was late and its fallback answered; `error` says why."""

    node: str
    status: Literal["completed", "failed", "skipped", "fallback"]
    ms: float = 0.0
    result: Any = None
    error: ToolFault | None = None


class SourceCited(Event, frozen=True, kw_only=True, tag="source.cited"):
    """A passage the answer rests on. `span` is (first, last + 1) character in the document."""

    id: str
    title: str
    url: str | None = None
    path: str | None = None
    span: tuple[int, int] | None = None
    score: float | None = None
    text: str | None = None


class RouteChosen(Event, frozen=True, kw_only=True, tag="route.chosen"):
    """`model` answers, as long as nothing else is said; in the place of `fallback_of`, if that is given."""

    model: str
    why: str
    fallback_of: str | None = None


class CacheHit(Event, frozen=True, kw_only=True, tag="cache.hit"):
    layer: Literal["exact", "semantic", "plan", "tool"]
    score: float | None = None
    age_s: float = 0.0


class InputRequested(Event, frozen=True, kw_only=True, tag="input.requested"):
    """The run waits for a person. `call_id` and `arguments_hash` bind an approval to one call."""

    input_id: str
    kind: Literal["approval", "question"]
    prompt: str = ""
    schema: dict[str, Any] = msgspec.field(default_factory=dict)
    call_id: str | None = None
    arguments_hash: str | None = None


class InputReceived(Event, frozen=True, kw_only=True, tag="input.received"):
    input_id: str
    value: Any


class CancelRequested(Event, frozen=True, kw_only=True, tag="cancel.requested"):
    by: str = "client"
    reason: str | None = None


class SteerReceived(Event, frozen=True, kw_only=True, tag="steer.received"):
    """`interrupt` cuts the model now and keeps what it said; `next_turn` waits for the turn's end."""

    steer_id: str
    text: str
    mode: Literal["interrupt", "next_turn"] = "next_turn"


class SteerApplied(Event, frozen=True, kw_only=True, tag="steer.applied"):
    """`seq` is the head when the steer reached the model."""

    steer_id: str
    seq: int


class SteerReturned(Event, frozen=True, kw_only=True, tag="steer.returned"):
    steer_id: str
    reason: str


class RunFinished(Event, frozen=True, kw_only=True, tag="run.finished"):
    """Terminal. `finish_reason` is the last turn's; `tool_calls` means client tools are to be run."""

    status: Literal["completed", "cancelled", "stopped_early"]
    output: str = ""
    finish_reason: str = "stop"
    usage: Usage = Usage()
    timing: Timing = Timing()


class RunErrored(Event, frozen=True, kw_only=True, tag="run.error"):
    """Terminal. `code` is one of errors.py."""

    code: str
    message: str
    retryable: bool = False
    hint: str | None = None


AnyEvent = (
    RunStarted
    | RunQueued
    | RunRecovered
    | RunReleased
    | TurnStarted
    | TurnFinished
    | ThinkingDelta
    | TextDelta
    | TextRetracted
    | TurnContinued
    | ToolCallStarted
    | ArgsDelta
    | ToolCallEnded
    | ToolProgress
    | ToolResult
    | NodeStarted
    | NodeFinished
    | SourceCited
    | RouteChosen
    | CacheHit
    | InputRequested
    | InputReceived
    | CancelRequested
    | SteerReceived
    | SteerApplied
    | SteerReturned
    | RunFinished
    | RunErrored
)

Request = CancelRequested | SteerReceived | InputReceived
"""What a client may append, without a fence and until the terminal record."""

Terminal = RunFinished | RunErrored
"""What ends a run: exactly one, and last."""

REQUESTS = get_args(Request)
TERMINALS = get_args(Terminal)
EVENT_TYPES: dict[str, type[Event]] = {cls.__struct_config__.tag: cls for cls in get_args(AnyEvent)}
TERMINAL_TYPES = frozenset({"run.finished", "run.error"})


def event_type(event: Event) -> str:
    """The name on the wire, e.g. `text.delta`."""
    tag = event.__struct_config__.tag
    assert isinstance(tag, str)
    return tag


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """An event the log accepted. `seq` counts from 1 without gaps within its run; `ts` is Unix time in ms."""

    run_id: str
    seq: int
    ts: int
    event: AnyEvent
