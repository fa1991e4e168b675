"""Chat completions: chunks and objects say the same, fit the published schema, and end in one honest way."""

import json
from typing import Any

import pytest
from hypothesis import given, settings

from headrace import events as e
from headrace.dialects.openai_chat_answer import ChatStream, chat_completion, chat_failure
from headrace.events import Record
from headrace.messages import Usage
from headrace.state import RunState, fold, initial
from headrace.wire.codec import encode_record
from legal_runs import RUN_ID, recorded, runs, started
from openai_schema import check, sse_data


def streamed(records: list[Record], *, include_usage: bool = True) -> bytes:
    stream = ChatStream(initial(RUN_ID), include_usage=include_usage)
    return b"".join(stream.record(record) for record in records)


def run(*events: e.Event) -> list[Record]:
    return recorded([started(), *events])


def chunks(shown: bytes) -> list[dict[str, Any]]:
    return [json.loads(data) for data in sse_data(shown) if data != "[DONE]"]


def completed(records: list[Record]) -> dict[str, Any]:
    return chat_completion(fold(records, initial(RUN_ID)))


class Answer:
    """What a client makes of the chunks."""

    def __init__(self, shown: bytes) -> None:
        self.roles: list[str] = []
        self.content = ""
        self.reasoning = ""
        self.calls: dict[int, dict[str, Any]] = {}
        self.annotations: list[dict[str, Any]] = []
        self.finishes: list[str] = []
        for chunk in chunks(shown):
            for choice in chunk.get("choices", []):
                self._take(choice)

    def _take(self, choice: dict[str, Any]) -> None:
        assert not self.finishes
        delta = choice["delta"]
        if "role" in delta:
            assert not self.content
            self.roles.append(delta["role"])
        self.content += delta.get("content", "")
        self.reasoning += delta.get("reasoning_content", "")
        self.annotations += delta.get("annotations", [])
        for call in delta.get("tool_calls", []):
            assert call["index"] == len(self.calls)
            self.calls[call["index"]] = call
        if choice["finish_reason"] is not None:
            self.finishes.append(choice["finish_reason"])


@settings(max_examples=50, deadline=None)
@given(runs())
def test_every_chunk_and_object_fits_the_published_schema(records: list[Record]) -> None:
    for chunk in chunks(streamed(records)):
        check("ErrorResponse" if "error" in chunk else "CreateChatCompletionStreamResponse", chunk)
    state = fold(records, initial(RUN_ID))
    if state.ended and chat_failure(state) is None:
        check("CreateChatCompletionResponse", chat_completion(state))


@settings(max_examples=80, deadline=None)
@given(runs())
def test_a_stream_ends_with_one_finish_and_done_or_breaks_with_an_error(records: list[Record]) -> None:
    shown = streamed(records)
    data = sse_data(shown)
    errors = [chunk for chunk in chunks(shown) if "error" in chunk]
    state = fold(records, initial(RUN_ID))
    retracted = any(item.kind == "text" and item.void for item in state.items)
    assert bool(errors) == (retracted or state.status == "failed")
    assert len(errors) <= 1
    assert (data[-1] == "[DONE]") == (state.ended and not errors)
    assert data.count("[DONE]") <= 1
    assert len(Answer(shown).finishes) == data.count("[DONE]")
    if errors:
        assert json.loads(data[-1]) == errors[0]


@settings(max_examples=80, deadline=None)
@given(runs())
def test_the_stream_and_the_object_are_the_same_answer(records: list[Record]) -> None:
    shown = streamed(records)
    if not shown.endswith(b"[DONE]\n\n"):
        return
    answer, message = Answer(shown), completed(records)["choices"][0]["message"]
    assert answer.roles == ["assistant"]
    assert answer.content == (message["content"] or "")
    assert [{k: v for k, v in call.items() if k != "index"} for call in answer.calls.values()] == message.get(
        "tool_calls", []
    )
    assert answer.annotations == message["annotations"]
    assert answer.finishes == [completed(records)["choices"][0]["finish_reason"]]


@settings(max_examples=50, deadline=None)
@given(runs())
def test_id_created_and_model_come_from_the_records_and_never_change(records: list[Record]) -> None:
    heads = {(c["id"], c["created"], c["model"]) for c in chunks(streamed(records)) if "error" not in c}
    assert heads == {("chatcmpl-01939bdc7c1e7a3b8f000123456789ab", 1_764_424_800, "docs")}


@settings(max_examples=50, deadline=None)
@given(runs())
def test_a_chat_fold_restarted_at_any_record_yields_the_same_bytes(records: list[Record]) -> None:
    whole = ChatStream(initial(RUN_ID))
    frames = [whole.record(record) for record in records]
    for cut in range(1, len(records) + 1):
        again = ChatStream(fold(records[:cut], initial(RUN_ID)))
        rest = [encode_record(record.seq, record.ts, record.event) for record in records[cut:]]
        assert again.feed(rest) == b"".join(frames[cut:])


def test_usage_is_null_until_a_last_chunk_without_choices() -> None:
    records = run(e.TextDelta(text="hi"), e.RunFinished(status="completed", output="hi", usage=Usage(input_tokens=4)))
    *before, last = chunks(streamed(records))
    assert all(chunk["usage"] is None for chunk in before)
    assert (last["choices"], last["usage"]["prompt_tokens"]) == ([], 4)
    assert all("usage" not in chunk for chunk in chunks(streamed(records, include_usage=False)))


def test_a_client_tool_finishes_with_tool_calls_streamed_or_not() -> None:
    records = run(
        e.TurnStarted(turn=1, model="m", engine="x"),
        e.ToolCallStarted(call_id="a", name="look_up", turn=1),
        e.ToolCallStarted(call_id="b", name="look_up", turn=1),
        e.ToolCallEnded(call_id="a", arguments={"q": 1}),
        e.ToolCallEnded(call_id="b", arguments={"q": 2}),
        e.TurnFinished(turn=1, finish_reason="stop"),
        e.RunFinished(status="completed", finish_reason="stop"),
    )
    answer, choice = Answer(streamed(records)), completed(records)["choices"][0]
    assert answer.finishes == [choice["finish_reason"]] == ["tool_calls"]
    assert [(i, call["id"], call["type"]) for i, call in answer.calls.items()] == [
        (0, "a", "function"),
        (1, "b", "function"),
    ]
    assert choice["message"]["content"] is None


def test_a_server_tool_is_not_shown() -> None:
    records = run(
        e.TurnStarted(turn=1, model="m", engine="x"),
        e.ToolCallStarted(call_id="a", name="clock", turn=1),
        e.ToolCallEnded(call_id="a", arguments={}),
        e.ToolResult(call_id="a", result="12:00"),
        e.TextDelta(text="Noon."),
        e.RunFinished(status="completed", output="Noon."),
    )
    assert Answer(streamed(records)).calls == {}
    assert "tool_calls" not in completed(records)["choices"][0]["message"]
    assert Answer(streamed(records)).finishes == ["stop"]


def test_retracted_text_breaks_the_stream_and_nothing_follows() -> None:
    records = run(
        e.TextDelta(text="wrong"),
        e.TextRetracted(turn=0, reason="failed over"),
        e.TextDelta(text="right"),
        e.RunFinished(status="completed", output="right"),
    )
    last = chunks(streamed(records))[-1]
    assert last["error"]["code"] == "text_retracted"
    assert b"right" not in streamed(records)
    assert completed(records)["choices"][0]["message"]["content"] == "right"


def test_retracted_thinking_alone_breaks_nothing() -> None:
    records = run(
        e.ThinkingDelta(text="hm"),
        e.TextRetracted(turn=0, reason="failed over"),
        e.TextDelta(text="right"),
        e.RunFinished(status="completed", output="right"),
    )
    assert Answer(streamed(records)).content == "right"


@pytest.mark.parametrize(
    ("status", "reason", "finish"),
    [
        ("completed", "stop", "stop"),
        ("completed", "length", "length"),
        ("completed", "content_filter", "content_filter"),
        ("completed", "tool_calls", "stop"),
        ("cancelled", "cancelled", "length"),
        ("stopped_early", "stop", "length"),
    ],
)
def test_every_end_has_a_finish_reason_of_the_schema(status: str, reason: str, finish: str) -> None:
    end = e.RunFinished(status=status, output="x", finish_reason=reason)  # type: ignore[arg-type]
    assert Answer(streamed(run(e.TextDelta(text="x"), end))).finishes == [finish]


def test_a_failed_run_is_an_error_frame_without_done() -> None:
    error = e.RunErrored(code="context_overflow", message="Too long.", hint="Send less.")
    shown = streamed(run(e.TextDelta(text="x"), error))
    assert chunks(shown)[-1] == {
        "error": {
            "message": "Too long. Send less.",
            "type": "invalid_request_error",
            "param": None,
            "code": "context_length_exceeded",
        }
    }
    assert b"[DONE]" not in shown


def test_a_client_that_fell_behind_the_log_is_told() -> None:
    state: RunState = fold(run(e.TextDelta(text="x")), initial(RUN_ID))
    (error,) = chunks(ChatStream(initial(RUN_ID)).snapshot(state))
    assert "fell behind" in error["error"]["message"]
