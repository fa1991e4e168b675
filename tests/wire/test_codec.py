import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import events as e
from headrace.errors import LogCorrupt
from headrace.events import EVENT_TYPES, Record
from headrace.messages import Message, Timing, Usage
from headrace.wire.codec import decode_record, encode_record, frame_data, frame_seq, frame_type

TS = 1_764_424_800_000
text = st.text(st.characters(exclude_categories=["Cs"]))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
SAMPLES: dict[str, e.AnyEvent] = {
    "run.started": e.RunStarted(agent="a", thread_id="t", input=(Message(role="user", content="q"),)),
    "run.queued": e.RunQueued(position=3),
    "run.recovered": e.RunRecovered(worker="w", after_seq=7),
    "run.released": e.RunReleased(worker="w"),
    "turn.started": e.TurnStarted(turn=1, model="m", engine="e"),
    "turn.continued": e.TurnContinued(turn=1, reason="engine_died"),
    "turn.finished": e.TurnFinished(turn=1, finish_reason="stop", usage=Usage(input_tokens=2), timing=Timing()),
    "thinking.delta": e.ThinkingDelta(text="hm"),
    "text.delta": e.TextDelta(text="hello"),
    "text.retracted": e.TextRetracted(turn=1, reason="engine died"),
    "tool_call.started": e.ToolCallStarted(call_id="c", name="clock", turn=1),
    "args.delta": e.ArgsDelta(call_id="c", delta='{"a'),
    "tool_call.ended": e.ToolCallEnded(call_id="c", arguments={"zone": "UTC"}),
    "tool.progress": e.ToolProgress(call_id="c", data={"percent": 5}),
    "tool.result": e.ToolResult(call_id="c", error=e.ToolFault(code="tool_failed", message="no"), ms=1.5),
    "node.started": e.NodeStarted(node="n", needs=("m",)),
    "node.finished": e.NodeFinished(node="n", status="completed", result=[1]),
    "source.cited": e.SourceCited(id="1", title="Log", span=(3, 9)),
    "route.chosen": e.RouteChosen(model="m", why="cheap"),
    "cache.hit": e.CacheHit(layer="exact"),
    "input.requested": e.InputRequested(input_id="i", kind="approval", schema={"type": "boolean"}),
    "input.received": e.InputReceived(input_id="i", value=None),
    "cancel.requested": e.CancelRequested(),
    "steer.received": e.SteerReceived(steer_id="s", text="shorter"),
    "steer.applied": e.SteerApplied(steer_id="s", seq=4),
    "steer.returned": e.SteerReturned(steer_id="s", reason="too late"),
    "run.finished": e.RunFinished(status="completed", output="x"),
    "run.error": e.RunErrored(code="agent_failed", message="bug"),
}


@pytest.mark.parametrize("name", sorted(EVENT_TYPES))
def test_every_event_survives_being_encoded(name: str) -> None:
    event = SAMPLES[name]
    frame = encode_record(12, TS, event)
    assert decode_record("r", frame) == Record(run_id="r", seq=12, ts=TS, event=event)
    assert frame_seq(frame) == 12
    assert frame_type(frame) == name
    data = msgspec.json.decode(frame_data(frame))
    assert data["ts"] == TS
    assert "type" not in data


@given(text)
def test_any_text_is_one_line_of_data(piece: str) -> None:
    frame = encode_record(1, TS, e.TextDelta(text=piece))
    assert frame.count(b"\n") == 4
    assert b"\r" not in frame
    decoded = decode_record("r", frame).event
    assert isinstance(decoded, e.TextDelta)
    assert decoded.text == piece


@given(json_values)
def test_any_json_result_survives_also_with_a_ts_inside(value: object) -> None:
    frame = encode_record(1, TS, e.ToolResult(call_id="c", result={"ts": 5, "value": value}))
    decoded = decode_record("r", frame)
    assert decoded.ts == TS
    assert isinstance(decoded.event, e.ToolResult)
    assert decoded.event.result == {"ts": 5, "value": value}


def test_a_five_byte_delta_costs_at_most_90_bytes_also_with_its_chunk_framing() -> None:
    frame = encode_record(12_345, TS, e.TextDelta(text="hello"))
    assert len(b"%x\r\n" % len(frame)) + len(frame) + 2 <= 90


@pytest.mark.parametrize(
    "broken", [b"", b"id: 1\n", b"id: x\nevent: text.delta\ndata: {}\n\n", b"id: 1\nevent: no\ndata: {}\n\n"]
)
def test_bytes_that_are_no_record_are_reported(broken: bytes) -> None:
    with pytest.raises(LogCorrupt):
        decode_record("r", broken)
