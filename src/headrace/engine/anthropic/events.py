"""The events of Anthropic's Messages API, one by one, as our chunks. No I/O, no await, no clock.

An answer is a row of content blocks, each with a number, and what is said of one stands in events that name it. Event
and block types that are not known here are skipped: the API announces that there will be more.
"""

from typing import Any

import msgspec

from headrace.engine.answer.halves import Halves
from headrace.engine.answer.text import AnswerText
from headrace.engine.openai.chunks import decode_patiently, new_call_id
from headrace.engine.port import Chunk, Finish, FinishReason, ToolCallPart
from headrace.engine.refusals import engine_error
from headrace.engine.seam import Seam
from headrace.engine.thoughts import Block, Remember, Turn
from headrace.errors import EngineDied, EngineProtocol
from headrace.messages import Timing, Usage

_decode = msgspec.json.Decoder().decode
_REASONS: dict[str, FinishReason] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}


class _Call:
    def __init__(self, index: int, call_id: str, name: str) -> None:
        self.index = index
        self.call_id = call_id
        self.name = name
        self.arguments = ""


class MessageEvents:
    """An `AnswerReader`. Feed it the data of each event."""

    prompt_ms: float | None = None
    decode_ms: float | None = None

    def __init__(
        self, *, start: Seam | None = None, stops: tuple[str, ...] = (), remember: Remember = lambda *_: None
    ) -> None:
        self.done = False
        self._pieces = 0
        self._reason: str | None = None
        self._said = AnswerText(start=start, stops=stops)
        self._turn = Turn()
        self._calls: dict[int, _Call] = {}  # by the number of their block
        self._thoughts: dict[int, Block] = {}
        self._remember = remember
        self._usage: dict[str, int] = {}

    @property
    def ended(self) -> bool:
        return self._reason is not None

    @property
    def stopped(self) -> bool:
        return self._said.stopped

    def feed(self, data: str, *, event: str = "message") -> list[Chunk]:
        """Raises EngineProtocol for what is not JSON, and the error that an error event means."""
        if self._said.stopped or not data.strip():
            return []
        sent = self._object(data)
        out: list[Chunk] = []
        at = sent["index"] if isinstance(sent.get("index"), int) else -1
        match sent.get("type", event):
            case "content_block_delta":
                self._delta(at, _dict(sent.get("delta")), out)
            case "content_block_start":
                self._block(at, _dict(sent.get("content_block")), out)
            case "content_block_stop":
                self._block_ended(at, out)
            case "message_start":
                self._count(_dict(sent.get("message")).get("usage"))
            case "message_delta":
                reason = _dict(sent.get("delta")).get("stop_reason")
                self._reason = str(reason) if reason else self._reason
                self._count(sent.get("usage"))
            case "message_stop":
                self.done = True
            case "error":
                raise engine_error(sent, begun=self._pieces > 0)
        self._note(out)
        return out

    def finish(self, timing: Timing | None = None) -> list[Chunk]:
        """The last chunks, once the stream is over. Raises EngineDied for a stream that broke off."""
        if self._reason is None:
            raise EngineDied("The model server ended the stream without saying that the answer is complete.")
        rest: list[Chunk] = []
        self._said.end(rest)
        self._note(rest)
        reason = _REASONS.get(self._reason, "stop")
        if self._calls:
            reason = "tool_calls" if reason == "stop" else reason
            self._remember(self._turn.said(), tuple(self._thoughts[at] for at in sorted(self._thoughts)))
        return [*rest, Finish(reason=reason, usage=self._used(), timing=timing or Timing())]

    def _object(self, data: str) -> dict[str, Any]:
        try:
            sent = _decode(data)
        except (msgspec.DecodeError, UnicodeEncodeError):
            sent = decode_patiently(data)
            self._said.halves = self._said.halves or Halves()
        if not isinstance(sent, dict):
            raise EngineProtocol(f"The model server sent an event that is no JSON object: {data[:120]!r}")
        return sent

    def _block(self, at: int, block: dict[str, Any], out: list[Chunk]) -> None:
        kind = block.get("type")
        if kind == "text":
            self._said.text(_str(block.get("text")), out)
        elif kind == "thinking":
            self._thoughts[at] = {"type": "thinking", "thinking": "", "signature": _str(block.get("signature"))}
            self._think(at, _str(block.get("thinking")), out)
        elif kind == "redacted_thinking":
            self._thoughts[at] = {"type": "redacted_thinking", "data": _str(block.get("data"))}
        elif kind == "tool_use":
            self._said.held(out)
            call = _Call(len(self._calls), _str(block.get("id")) or new_call_id(), _str(block.get("name")))
            if not call.name:
                raise EngineProtocol(f"The engine began tool call {call.call_id} and never named the tool.")
            self._calls[at] = call
            if block.get("input"):  # some servers send it whole
                call.arguments = msgspec.json.encode(block["input"]).decode()
            out.append(ToolCallPart(index=call.index, call_id=call.call_id, name=call.name, arguments=call.arguments))

    def _delta(self, at: int, delta: dict[str, Any], out: list[Chunk]) -> None:
        match delta.get("type"):
            case "text_delta":
                self._said.text(_str(delta.get("text")), out)
            case "thinking_delta":
                self._think(at, _str(delta.get("thinking")), out)
            case "signature_delta" if at in self._thoughts:
                self._thoughts[at]["signature"] += _str(delta.get("signature"))
            case "input_json_delta" if at in self._calls:
                self._argue(self._calls[at], _str(delta.get("partial_json")), out)

    def _think(self, at: int, text: str, out: list[Chunk]) -> None:
        if at in self._thoughts:
            self._thoughts[at]["thinking"] += text
        self._said.thinking(text, out)

    def _argue(self, call: _Call, fragment: str, out: list[Chunk]) -> None:
        if fragment:
            call.arguments += fragment
            out.append(ToolCallPart(index=call.index, arguments=fragment))

    def _block_ended(self, at: int, out: list[Chunk]) -> None:
        call = self._calls.get(at)
        if call is not None and not call.arguments:
            self._argue(call, "{}", out)  # a call without arguments has none to send

    def _note(self, out: list[Chunk]) -> None:
        self._pieces += len(out)
        self._turn.add(out)
        if self._said.stopped:
            self.done, self._reason = True, "stop_sequence"

    def _count(self, usage: object) -> None:
        """The numbers are totals so far; a later event may leave some out."""
        for name, value in (_dict(usage) | _dict(_dict(usage).get("output_tokens_details"))).items():
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                self._usage[name] = value

    def _used(self) -> Usage:
        """`input_tokens` of the API are those that no cache had to do with."""
        used = self._usage.get
        cached = used("cache_read_input_tokens", 0)
        return Usage(
            input_tokens=used("input_tokens", 0) + cached + used("cache_creation_input_tokens", 0),
            # Where a stop was found here nobody has counted: a piece is one token or more.
            output_tokens=max(used("output_tokens", 0), self._pieces if self._said.stopped else 0),
            cached_tokens=cached,
            reasoning_tokens=used("thinking_tokens", 0),
        )


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _str(value: object) -> str:
    return value if isinstance(value, str) else ""
