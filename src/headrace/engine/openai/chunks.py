"""The events of a chat-completions stream, one by one, as our chunks. No I/O, no await, no clock.

Every server that calls itself compatible has habits; what they do to text, reasoning, calls, usage and endings is
sorted out here, so that nobody above knows them. Text comes out in whole characters and never empty.
"""

import json
import secrets
from collections.abc import Callable
from typing import Any

import msgspec

from headrace.engine.answer.halves import Halves
from headrace.engine.answer.logprobs import read_logprobs
from headrace.engine.answer.text import AnswerText
from headrace.engine.answer.think_tags import ThinkTags
from headrace.engine.answer.tool_fragments import ToolFragments
from headrace.engine.port import Chunk, Finish, FinishReason, ToolCallPart
from headrace.engine.refusals import engine_error
from headrace.engine.seam import Seam
from headrace.engine.thoughts import Block, Remember, Turn
from headrace.errors import ContextOverflow, EngineDied, EngineProtocol
from headrace.messages import Timing, Usage

_decode = msgspec.json.Decoder().decode
_REASONS: dict[str, FinishReason] = {
    "length": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
    "tool_calls": "stop",  # becomes tool_calls again if there was a call
    "function_call": "stop",
}
_BROKEN = ("abort", "error", "cancelled")


def new_call_id() -> str:
    return f"call_{secrets.token_hex(8)}"


def decode_patiently(data: str) -> Any:
    """What the fast decoder cannot read, such as half a character or NaN. Raises EngineProtocol for what is no JSON."""
    try:
        return json.loads(data)
    except ValueError as exc:
        raise EngineProtocol(f"The model server sent an event that is no JSON: {data[:120]!r}") from exc


class CompletionChunks:
    """Feed it the data of each event; `done` is True after `[DONE]` or a stop string, `ended` as soon as a finish
    reason came.

    `prompt_ms` and `decode_ms` are what the server says reading the prompt and saying the answer took, where it says
    so. `start` is what looks at the first text: by default for tags of thinking, which a continued answer does not
    begin with. `remember` is given what the server signed each call with.
    """

    def __init__(
        self,
        *,
        start: ThinkTags | Seam | None = None,
        stops: tuple[str, ...] = (),
        remember: Remember | None = None,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        self.done = False
        self.prompt_ms: float | None = None
        self.decode_ms: float | None = None
        self._reason: str | None = None
        self._usage = Usage()
        self._counted = False
        self._pieces = 0
        self._calls = ToolFragments(new_id=new_id)
        self._signed: dict[int, Block] = {}
        self._remember = remember
        self._turn = Turn()
        self._said = AnswerText(start=start or ThinkTags(), stops=stops)

    @property
    def begun(self) -> bool:
        return self._pieces > 0

    @property
    def ended(self) -> bool:
        return self._reason is not None

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found here, while the server still generates."""
        return self._said.stopped

    def feed(self, data: str, *, event: str = "message") -> list[Chunk]:
        """Raises EngineProtocol for what is not JSON, and the error that an error object means."""
        if data[:1] != "{":
            return self._other(data)
        try:
            chunk = _decode(data)
        except (msgspec.DecodeError, UnicodeEncodeError):
            chunk = decode_patiently(data)
            self._said.halves = self._said.halves or Halves()
        if chunk.get("error") or event == "error" or chunk.get("object") == "error":
            raise engine_error(chunk, begun=self.begun)
        if "timings" in chunk or "metrics" in chunk:
            self._read_timings(_details(chunk, "timings"), _details(chunk, "metrics"))
        if chunk.get("usage"):
            self._read_usage(chunk)
        choices = chunk.get("choices")
        if not isinstance(choices, list):
            if "detail" in chunk:
                raise engine_error(chunk, begun=self.begun)
            return []
        out: list[Chunk] = []
        for choice in choices:
            if isinstance(choice, dict) and not choice.get("index") and not self._said.stopped:
                self._read_choice(choice, out)
        self._pieces += len(out)
        if self._remember is not None:
            self._turn.add(out)
        if self._said.stopped and not self.done:
            self.done, self._reason = True, "stop"
        return out

    def finish(self, timing: Timing | None = None) -> list[Chunk]:
        """The last chunks, once the stream is over. Raises EngineDied for a stream that broke off."""
        if self._reason is None and not (self.done and self.begun):
            raise EngineDied("The model server ended the stream without saying that the answer is complete.")
        if self._reason in _BROKEN:
            raise EngineDied(f"The model server broke off its answer ({self._reason}).")
        self._calls.end()
        rest: list[Chunk] = []
        self._said.end(rest)
        reason = _REASONS.get(self._reason or "", "stop")
        if reason == "length" and self._counted and not (self.begun or rest or self._usage.output_tokens):
            raise ContextOverflow("The prompt leaves no room for an answer.", hint="Shorten the conversation.")
        if reason == "stop" and self._calls.called:
            reason = "tool_calls"
        if self._remember is not None and self._signed:
            self._turn.add(rest)
            calls = range(len(self._turn.said().tool_calls))
            self._remember(self._turn.said(), tuple(self._signed.get(index, {}) for index in calls))
        if not self._counted:
            self._usage = Usage(output_tokens=self._pieces)  # at least: a piece is one token or more
        return [*rest, Finish(reason=reason, usage=self._usage, timing=timing or Timing())]

    def _other(self, data: str) -> list[Chunk]:
        word = data.strip()
        if word == "[DONE]":
            self.done = True
        elif word.startswith("{"):
            return self.feed(word)
        elif word:
            raise EngineProtocol(f"The model server sent an event that is no JSON object: {word[:120]!r}")
        return []

    def _read_choice(self, choice: dict[str, Any], out: list[Chunk]) -> None:
        """Every field that is there counts, reasoning first."""
        said = self._said
        delta = choice.get("delta") or choice.get("message")
        if isinstance(delta, dict):
            reasoning = delta.get("reasoning_content") or delta.get("reasoning") or delta.get("reasoning_details")
            if reasoning:
                said.thinking(_plain(reasoning), out)
            content = delta.get("content") or delta.get("refusal")
            if type(content) is str:
                if content:
                    said.text(content, out)
            elif content:
                self._parts(content, out)
            calls = delta.get("tool_calls")
            if calls:
                self._tool_calls(calls if isinstance(calls, list) else [calls], out)
            elif delta.get("function_call"):
                self._tool_calls([{"function": delta["function_call"]}], out)
        elif choice.get("text"):
            said.text(_plain(choice["text"]), out)
        if choice.get("logprobs"):
            said.logprobs(read_logprobs(choice["logprobs"]), out)
        reason = choice.get("finish_reason")
        if reason:
            self._reason = str(reason)

    def _parts(self, content: object, out: list[Chunk]) -> None:
        """A content in parts, as Mistral sends it: some of them may be thinking."""
        for part in content if isinstance(content, list) else [content]:
            if isinstance(part, dict) and "thinking" in part:
                self._said.thinking(_plain(part["thinking"]), out)
            else:
                self._said.text(_plain(part), out)

    def _tool_calls(self, entries: list[Any], out: list[Chunk]) -> None:
        self._said.held(out)
        halves = self._said.halves
        for entry in entries:
            part = self._calls.feed(entry) if isinstance(entry, dict) else None
            if part is not None:
                out.append(part if halves is None else _whole(part, halves))
                if entry.get("extra_content"):
                    self._signed[part.index] = {"extra_content": entry["extra_content"]}

    def _read_usage(self, chunk: dict[str, Any]) -> None:
        usage = chunk["usage"]
        if not isinstance(usage, dict):
            return
        cached = _details(usage, "prompt_tokens_details").get("cached_tokens")
        if cached is None:
            cached = _details(chunk, "timings").get("cache_n", usage.get("prompt_cache_hit_tokens"))
        thought = _details(usage, "completion_tokens_details").get("reasoning_tokens") or usage.get("reasoning_tokens")
        self._counted = True
        self._usage = Usage(
            input_tokens=_count(usage.get("prompt_tokens")),
            output_tokens=_count(usage.get("completion_tokens")),
            cached_tokens=_count(cached),
            reasoning_tokens=_count(thought),
        )

    def _read_timings(self, llama: dict[str, Any], vllm: dict[str, Any]) -> None:
        """What llama.cpp's server measured, or vLLM with `--enable-per-request-metrics`."""
        self.prompt_ms = _number(llama.get("prompt_ms", vllm.get("time_to_first_token_ms")))
        self.decode_ms = _number(llama.get("predicted_ms", vllm.get("generation_time_ms")))


def _whole(part: ToolCallPart, halves: Halves) -> ToolCallPart:
    return msgspec.structs.replace(part, arguments=halves.join(f"call {part.index}", part.arguments))


def _details(holder: dict[str, Any], key: str) -> dict[str, Any]:
    value = holder.get(key)
    return value if isinstance(value, dict) else {}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _count(value: object) -> int:
    return int(value) if isinstance(value, int | float) and 0 < value < 2**53 else 0


def _plain(content: object) -> str:
    """Some servers send a list of parts instead of a text."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_plain(part) for part in content)
    if isinstance(content, dict):
        return _plain(content.get("text") or content.get("summary") or "")
    return ""
