"""A run as a Chat Completion: a stream of chunks, or one object.

The client sees text, reasoning and calls of its own tools; what the server's tools do stays inside. The API can take
nothing back: if text that was sent is retracted, or the run fails, the stream breaks with an error frame and without
`[DONE]`. A run that was cut short (cancelled, out of turns) ends with `length`, the one value that says so.
"""

from typing import Any

from headrace import events as e
from headrace.dialects.openai_citations import chat_annotations
from headrace.dialects.openai_errors import Failure, failure, retracted_failure, run_failure
from headrace.dialects.openai_shared import (
    DeltaFrame,
    Kind,
    RecordFold,
    arguments_json,
    call_of,
    created,
    json,
    short_id,
)
from headrace.errors import HeadraceError
from headrace.messages import Usage
from headrace.state import RunState

DONE = b"data: [DONE]\n\n"


class ChatStream(RecordFold):
    """The chunks of one run."""

    def __init__(self, state: RunState, *, include_usage: bool = False) -> None:
        self._include_usage = include_usage
        self._lost = False
        super().__init__(state)

    @property
    def broken(self) -> bool:
        """After a retraction, or once the client has fallen behind."""
        return self._lost or _broken(self._state)

    def cut(self, error: HeadraceError) -> bytes:
        """A client takes a stream without an end for a whole answer."""
        return error_frame(failure(error))

    def snapshot(self, state: RunState) -> bytes:
        """The client was so slow that records it has not read are gone: a stream of chunks cannot go on."""
        self._lost, self._patterns = True, {}
        return error_frame(retracted_failure("this client fell behind what the server keeps."))

    def step(self, before: RunState, record: e.Record, after: RunState) -> bytes:
        if self._lost or _broken(before):
            return b""
        if _broken(after):
            reason = record.event.reason if isinstance(record.event, e.TextRetracted) else "the turn began again."
            return error_frame(retracted_failure(reason))
        match record.event:
            case e.RunStarted():
                return self._delta(after, {"role": "assistant", "content": "", "refusal": None})
            case e.TextDelta(text=text):
                return self._delta(after, {"content": text})
            case e.ThinkingDelta(text=text):
                return self._delta(after, {"reasoning_content": text})
            case e.ToolCallEnded() if len(after.items) > len(before.items):
                calls = _client_calls(after)
                return self._delta(after, {"tool_calls": [{"index": len(calls) - 1, **calls[-1]}]})
            case e.RunFinished():
                return self._last(after)
            case e.RunErrored() as error:
                return error_frame(run_failure(error))
        return b""

    def patterns(self, state: RunState) -> dict[Kind, DeltaFrame]:
        if not state.seq or state.ended or _broken(state):
            return {}
        head, tail = self._head(state), b"}" + self._tail(None)
        return {
            "text": DeltaFrame(head + b'{"index":0,"delta":{"content":', tail),
            "thinking": DeltaFrame(head + b'{"index":0,"delta":{"reasoning_content":', tail),
        }

    def _last(self, state: RunState) -> bytes:
        late = self._delta(state, {"content": state.output}) if state.output and not state.text else b""
        cited = chat_annotations(state.sources, state.text or state.output)
        notes = self._delta(state, {"annotations": cited}) if cited else b""
        end = self._delta(state, {}, finish_reason(state))
        return late + notes + end + (self._usage(state) if self._include_usage else b"") + DONE

    def _delta(self, state: RunState, delta: dict[str, Any], finish: str | None = None) -> bytes:
        return self._head(state) + b'{"index":0,"delta":' + json.encode(delta) + self._tail(finish)

    def _head(self, state: RunState) -> bytes:
        """Everything before the choice."""
        shown = {
            "id": chat_id(state.run_id),
            "object": "chat.completion.chunk",
            "created": created(state),
            "model": state.agent,
        }
        return b"data: " + json.encode(shown)[:-1] + b',"choices":['

    def _tail(self, finish: str | None) -> bytes:
        usage = b',"usage":null' if self._include_usage else b""
        return b',"logprobs":null,"finish_reason":' + json.encode(finish) + b"}]" + usage + b"}\n\n"

    def _usage(self, state: RunState) -> bytes:
        return self._head(state) + b'],"usage":' + json.encode(chat_usage(state.usage)) + b"}\n\n"


def chat_completion(state: RunState) -> dict[str, Any]:
    """A run that has ended, as one object. See `chat_failure` first."""
    message: dict[str, Any] = {"role": "assistant", "content": _content(state), "refusal": None}
    thinking = "".join(turn.thinking for turn in state.turns)
    if thinking:
        message["reasoning_content"] = thinking
    calls = _client_calls(state)
    if calls:
        message["tool_calls"] = calls
    message["annotations"] = chat_annotations(state.sources, state.text or state.output)
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason(state)}
    return {
        "id": chat_id(state.run_id),
        "object": "chat.completion",
        "created": created(state),
        "model": state.agent,
        "choices": [choice],
        "usage": chat_usage(state.usage),
    }


def chat_failure(state: RunState) -> Failure | None:
    """Why there is no completion, for a run that failed."""
    return None if state.error is None else run_failure(state.error)


def chat_id(run_id: str) -> str:
    return f"chatcmpl-{short_id(run_id)}"


def error_frame(failure: Failure) -> bytes:
    return b"data: " + json.encode(failure.body) + b"\n\n"


def finish_reason(state: RunState) -> str:
    if state.status != "completed":
        return "length"
    if any(item.kind == "call" for item in state.items):
        return "tool_calls"
    return state.finish_reason if state.finish_reason in ("length", "content_filter") else "stop"


def chat_usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _client_calls(state: RunState) -> list[dict[str, Any]]:
    calls = [call_of(state, item.call_id) for item in state.items if item.kind == "call"]
    return [
        {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": arguments_json(call)}}
        for call in calls
    ]


def _content(state: RunState) -> str | None:
    """Null when there are only calls."""
    text = state.text or state.output
    return text or (None if any(item.kind == "call" for item in state.items) else "")


def _broken(state: RunState) -> bool:
    """Text that a stream has sent has been taken back."""
    return any(item.kind == "text" and item.void for item in state.items)
