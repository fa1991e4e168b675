"""The Responses stream is a pure function of records, and what it says is what OpenAI's schema allows."""

import json
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import events as e
from headrace.dialects.openai_response import response_object
from headrace.dialects.openai_response_stream import ResponseStream, next_number
from headrace.events import Record
from headrace.messages import Usage
from headrace.state import RunState, fold, initial
from headrace.wire.codec import encode_record
from legal_runs import CLIENT_TOOL, RUN_ID, recorded, runs, started
from openai_schema import check, check_event, sse_data

Events = list[dict[str, Any]]


def streamed(records: list[Record], *, after: int = -1) -> bytes:
    stream = ResponseStream(initial(RUN_ID), after=after)
    return b"".join(stream.record(record) for record in records)


def events_of(*events: e.Event) -> Events:
    return [json.loads(data) for data in sse_data(streamed(recorded([started(), *events])))]


def types(events: Events) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def stored(state: RunState) -> RunState:
    """As a snapshot that was written and read again."""
    return msgspec.json.decode(msgspec.json.encode(state), type=RunState)


@settings(max_examples=80, deadline=None)
@given(runs())
def test_a_fold_restarted_at_any_record_yields_the_same_bytes(records: list[Record]) -> None:
    whole = ResponseStream(initial(RUN_ID))
    frames = [whole.record(record) for record in records]
    for cut in range(len(records) + 1):
        again = ResponseStream(stored(fold(records[:cut], initial(RUN_ID))))
        assert [again.record(record) for record in records[cut:]] == frames[cut:]


@settings(max_examples=80, deadline=None)
@given(runs())
def test_numbers_are_contiguous_from_zero_and_known_from_the_state_alone(records: list[Record]) -> None:
    stream = ResponseStream(initial(RUN_ID))
    number = 0
    for i, record in enumerate(records, 1):
        for data in sse_data(stream.record(record)):
            assert json.loads(data)["sequence_number"] == number
            number += 1
        assert next_number(fold(records[:i], initial(RUN_ID))) == number


@settings(max_examples=50, deadline=None)
@given(runs(), st.data())
def test_starting_after_n_gives_exactly_the_later_bytes(records: list[Record], data: st.DataObject) -> None:
    whole = streamed(records)
    frames = [frame + b"\n\n" for frame in whole.split(b"\n\n")[:-1]]
    after = data.draw(st.integers(-1, len(frames)))
    assert streamed(records, after=after) == b"".join(frames[after + 1 :])


@settings(max_examples=50, deadline=None)
@given(runs(), st.data())
def test_how_the_log_hands_over_its_frames_makes_no_difference(records: list[Record], data: st.DataObject) -> None:
    frames = [encode_record(record.seq, record.ts, record.event) for record in records]
    stream = ResponseStream(initial(RUN_ID))
    shown = b""
    while frames:
        cut = data.draw(st.integers(1, len(frames)))
        shown += stream.feed(frames[:cut])
        frames = frames[cut - 1 :] if data.draw(st.booleans()) else frames[cut:]  # the last one twice
        if len(frames) == 1 and cut > 1:
            shown += stream.feed(frames)
            frames = []
    assert shown == streamed(records)


@settings(max_examples=50, deadline=None)
@given(runs())
def test_every_event_and_object_fits_the_published_schema(records: list[Record]) -> None:
    for data in sse_data(streamed(records)):
        check_event(json.loads(data))
    check("Response", response_object(fold(records, initial(RUN_ID))))


@settings(max_examples=80, deadline=None)
@given(runs())
def test_items_open_once_and_close_once_and_deltas_add_up(records: list[Record]) -> None:
    shown = Accumulated()
    for data in sse_data(streamed(records)):
        shown.take(json.loads(data))
    state = fold(records, initial(RUN_ID))
    assert standing_text(state) == (state.text or state.output)
    if state.ended:
        assert not shown.open
        assert shown.ends == 1
        assert shown.final == response_object(state)


class Accumulated:
    """What a strict client makes of the events."""

    def __init__(self) -> None:
        self.open: dict[int, str] = {}
        self.done: dict[int, dict[str, Any]] = {}
        self.final: dict[str, Any] = {}
        self.ends = 0

    def take(self, event: dict[str, Any]) -> None:
        assert not self.ends
        kind, index = event["type"], event.get("output_index", -1)
        if kind == "response.output_item.added":
            assert index == len(self.open) + len(self.done)
            self.open[index] = ""
        elif kind.endswith(".delta"):
            self.open[index] += event["delta"]
        elif kind.endswith((".output_text.done", ".reasoning_text.done")):
            assert event["text"] == self.open[index]
        elif kind == "response.function_call_arguments.done":
            assert event["arguments"] == self.open[index]
        elif kind == "response.output_item.done":
            del self.open[index]
            self.done[index] = event["item"]
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            self.final = event["response"]
            self.ends += 1


def standing_text(state: RunState) -> str:
    """The text of the messages that have not been taken back."""
    output = response_object(state)["output"]
    return "".join(p["text"] for item in output if item["type"] == "message" for p in item["content"])


def test_an_answer_goes_through_the_events_in_the_published_order() -> None:
    events = events_of(
        e.TurnStarted(turn=1, model="m", engine="x"),
        e.TextDelta(text="He"),
        e.TextDelta(text="y"),
        e.TurnFinished(turn=1, finish_reason="stop"),
        e.RunFinished(status="completed", output="Hey", usage=Usage(input_tokens=1, output_tokens=2)),
    )
    assert types(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert events[6]["text"] == "Hey"
    assert events[-1]["response"]["usage"]["total_tokens"] == 3
    assert events[-1]["response"]["output"] == [events[-2]["item"]]


def test_retracted_text_ends_its_item_incomplete_and_a_new_item_begins() -> None:
    events = events_of(
        e.TurnStarted(turn=1, model="m", engine="x"),
        e.TextDelta(text="wrong"),
        e.TextRetracted(turn=1, reason="failed over"),
        e.TextDelta(text="right"),
        e.RunFinished(status="completed", output="right"),
    )
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert [(d["output_index"], d["item"]["status"], d["item"]["content"][0]["text"]) for d in done] == [
        (0, "incomplete", "wrong"),
        (1, "completed", "right"),
    ]
    void, kept = events[-1]["response"]["output"]
    assert (void["status"], void["content"]) == ("incomplete", [])
    assert kept["content"][0]["text"] == "right"


def test_a_server_tool_stays_inside_and_a_client_tool_is_a_function_call() -> None:
    events = events_of(
        e.TurnStarted(turn=1, model="m", engine="x"),
        e.ToolCallStarted(call_id="a", name="clock", turn=1),
        e.ToolCallEnded(call_id="a", arguments={}),
        e.ToolResult(call_id="a", result="12:00"),
        e.ToolCallStarted(call_id="b", name=CLIENT_TOOL.name, turn=1),
        e.ToolCallEnded(call_id="b", arguments={"q": "x"}),
        e.RunFinished(status="completed", finish_reason="tool_calls"),
    )
    (call,) = events[-1]["response"]["output"]
    assert (call["type"], call["call_id"], call["name"]) == ("function_call", "b", "look_up")
    assert json.loads(call["arguments"]) == {"q": "x"}
    assert events[-1]["type"] == "response.completed"


def test_a_cancelled_run_ends_incomplete_with_the_status_cancelled_and_keeps_its_text() -> None:
    events = events_of(e.TextDelta(text="half"), e.RunFinished(status="cancelled", output="half"))
    assert events[-1]["type"] == "response.incomplete"
    response = events[-1]["response"]
    assert (response["status"], response["incomplete_details"]) == ("cancelled", None)
    assert (response["output"][0]["status"], response["output"][0]["content"][0]["text"]) == ("incomplete", "half")


def test_a_full_token_budget_is_incomplete_with_its_reason() -> None:
    events = events_of(
        e.TurnStarted(turn=1, model="m", engine="x"),
        e.TextDelta(text="lon"),
        e.TurnFinished(turn=1, finish_reason="length"),
        e.RunFinished(status="completed", output="lon", finish_reason="length"),
    )
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert events[-1]["response"]["output"][0]["status"] == "incomplete"


def test_a_failed_run_fails_the_response_with_a_code_of_the_schema() -> None:
    events = events_of(e.RunErrored(code="engine_overloaded", message="Busy."))
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"] == {"code": "rate_limit_exceeded", "message": "Busy. (engine_overloaded)"}


def test_sources_become_annotations_of_the_message_they_rest_under() -> None:
    events = events_of(
        e.SourceCited(id="1", title="Log", url="https://example.org/log", text="the log"),
        e.SourceCited(id="2", title="Guide", path="docs/guide.md"),
        e.SourceCited(id="1", title="Log", url="https://example.org/log", text="the log"),
        e.TextDelta(text="It is the log."),
        e.RunFinished(status="completed", output="It is the log."),
    )
    web, file = events[-1]["response"]["output"][0]["content"][0]["annotations"]
    assert (web["type"], web["start_index"], web["end_index"]) == ("url_citation", 6, 13)
    assert (file["type"], file["filename"]) == ("file_citation", "docs/guide.md")
    assert types(events).count("output_text.annotation.added") == 2


def test_output_that_was_never_streamed_comes_as_one_whole_message() -> None:
    events = events_of(e.RunFinished(status="completed", output="All of it."))
    assert "output_text.delta" in types(events)
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "All of it."


def test_a_client_whose_events_are_gone_gets_the_response_as_it_stands_and_goes_on() -> None:
    records = recorded([started(), *(e.TextDelta(text=f"{i} ") for i in range(5)), e.RunFinished(status="completed")])
    state = fold(records[:4], initial(RUN_ID))
    fresh, late = ResponseStream(initial(RUN_ID)), ResponseStream(initial(RUN_ID), after=1)
    created = json.loads(sse_data(fresh.snapshot(state))[0])
    assert (created["type"], created["sequence_number"]) == ("response.created", 6)
    assert created["response"]["output"][0]["content"][0]["text"] == "0 1 2 "
    assert json.loads(sse_data(late.snapshot(state))[0])["type"] == "response.in_progress"
    rest = b"".join(fresh.record(record) for record in records[4:])
    assert rest == streamed(records, after=6)


def test_a_snapshot_of_an_ended_run_ends_the_stream_and_says_it_once() -> None:
    records = recorded([started(), e.TextDelta(text="hi"), e.RunFinished(status="completed", output="hi")])
    stream = ResponseStream(initial(RUN_ID))
    shown = stream.snapshot(fold(records, initial(RUN_ID))) + stream.record(records[-1])
    events = [json.loads(data) for data in sse_data(shown)]
    assert types(events) == ["created", "completed"]
    assert [event["sequence_number"] for event in events] == [
        next_number(stream.state) - 2,
        next_number(stream.state) - 1,
    ]
    for event in events:
        check_event(event)
