from hypothesis import given
from hypothesis import strategies as st

from headrace import events as e
from headrace.messages import Message, Usage
from headrace.state import apply, conversation, fold, initial

TS = 1_764_424_800_000
any_event = st.sampled_from(
    [
        e.RunStarted(agent="a", thread_id="t", input=(Message(role="user", content="q"),)),
        e.RunQueued(position=2),
        e.RunQueued(position=0),
        e.TurnStarted(turn=1, model="m", engine="x"),
        e.TurnStarted(turn=2, model="m", engine="x"),
        e.TextDelta(text="hello "),
        e.TextDelta(text="你好"),
        e.ThinkingDelta(text="hm"),
        e.TextRetracted(turn=1, reason="died"),
        e.TurnContinued(turn=1, reason="died"),
        e.RunRecovered(worker="w", after_seq=1),
        e.ToolCallStarted(call_id="c1", name="clock", turn=1),
        e.ToolCallEnded(call_id="c1", arguments={"a": 1}),
        e.ToolProgress(call_id="c1", data=5),
        e.ToolResult(call_id="c1", result="noon"),
        e.NodeStarted(node="n"),
        e.NodeFinished(node="n", status="completed", result=1),
        e.SourceCited(id="s", title="t"),
        e.InputRequested(input_id="i", kind="question"),
        e.InputReceived(input_id="i", value=True),
        e.SteerReceived(steer_id="s", text="shorter"),
        e.SteerApplied(steer_id="s", seq=3),
        e.CancelRequested(),
        e.TurnFinished(turn=1, finish_reason="stop", usage=Usage(output_tokens=3)),
        e.RunFinished(status="completed", output="hello"),
    ]
)


def records(events: list[e.AnyEvent]) -> list[e.Record]:
    return [e.Record(run_id="r", seq=seq, ts=TS + seq, event=event) for seq, event in enumerate(events, 1)]


@given(st.lists(any_event, max_size=40), st.data())
def test_a_snapshot_and_the_later_records_equal_a_full_replay(events: list[e.AnyEvent], data: st.DataObject) -> None:
    all_records = records(events)
    whole = initial("r")
    for record in all_records:
        whole = apply(whole, record)
    cut = data.draw(st.integers(0, len(all_records)))
    overlap = data.draw(st.integers(0, cut))
    snapshot = fold(all_records[:cut], initial("r"))
    assert fold(all_records[overlap:], snapshot) == whole


def test_a_record_seen_before_changes_nothing() -> None:
    state = fold(records([e.TextDelta(text="once")]), initial("r"))
    assert apply(state, records([e.TextDelta(text="once")])[0]) is state


def test_every_call_in_a_conversation_has_exactly_one_answer_also_when_the_run_was_cancelled() -> None:
    state = fold(
        records(
            [
                e.RunStarted(agent="a", thread_id="t", input=(Message(role="user", content="q"),)),
                e.TurnStarted(turn=1, model="m", engine="x"),
                e.ToolCallStarted(call_id="c1", name="mail", turn=1),
                e.ToolCallEnded(call_id="c1", arguments={}),
                e.ToolCallStarted(call_id="c2", name="mail", turn=1),
                e.ToolCallEnded(call_id="c2", arguments={}),
                e.ToolResult(call_id="c2", error=e.ToolFault(code="tool_cancelled", message="stopped")),
                e.RunFinished(status="cancelled"),
            ]
        ),
        initial("r"),
    )
    messages = conversation(state)
    asked = [call.call_id for message in messages for call in message.tool_calls]
    answered = [message.call_id for message in messages if message.role == "tool"]
    assert asked == answered == ["c1", "c2"]


def test_the_partial_answer_of_a_cancelled_run_is_part_of_the_conversation() -> None:
    state = fold(
        records(
            [
                e.RunStarted(agent="a", thread_id="t", input=(Message(role="user", content="q"),)),
                e.TurnStarted(turn=1, model="m", engine="x"),
                e.TextDelta(text="It is"),
                e.RunFinished(status="cancelled", output="It is"),
            ]
        ),
        initial("r"),
    )
    assert [m.content for m in conversation(state)] == ["q", "It is"]


def test_retracted_text_is_gone_from_the_state() -> None:
    state = fold(
        records(
            [
                e.TurnStarted(turn=1, model="m", engine="x"),
                e.TextDelta(text="wrong"),
                e.TextRetracted(turn=1, reason="engine died"),
                e.TextDelta(text="right"),
            ]
        ),
        initial("r"),
    )
    assert state.text == "right"
    assert state.turns[0].retracted == 1


def test_text_that_goes_on_after_a_crash_gets_the_run_further_and_text_that_is_said_again_does_not() -> None:
    begun: list[e.AnyEvent] = [
        e.TurnStarted(turn=1, model="m", engine="x"),
        e.TextDelta(text="It "),
        e.RunRecovered(worker="w", after_seq=2),
    ]
    again: list[e.AnyEvent] = [
        *begun,
        e.TextRetracted(turn=1, reason="recovered"),
        e.TextDelta(text="It "),
        e.TextDelta(text="is."),
    ]
    further: list[e.AnyEvent] = [*begun, e.TurnContinued(turn=1, reason="recovered"), e.TextDelta(text="is.")]
    assert fold(records(again), initial("r")).crashes == 1
    assert fold(records(further[:-1]), initial("r")).crashes == 1
    assert fold(records(further), initial("r")).crashes == 0
    assert fold(records(further), initial("r")).text == "It is."
