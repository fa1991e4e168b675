"""A request in vLLM's words, and what vLLM says of one answer as our chunks. Pure: nothing here imports it."""

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.engine.answer.text import AnswerText
from headrace.engine.port import PARAMETERS, Chunk, Finish, FinishReason, ModelRequest, TokenLogprob
from headrace.errors import EngineDied
from headrace.messages import Timing, Usage

_REASONS: Mapping[str, FinishReason] = {"stop": "stop", "length": "length", "repetition": "stop"}
_SAMPLING = PARAMETERS - {"stop"}


def sampling_fields(request: ModelRequest) -> dict[str, Any]:
    """The request in vLLM's words. Without `max_tokens` an answer may fill the context."""
    fields: dict[str, Any] = {name: getattr(request, name) for name in _SAMPLING}
    fields = {name: value for name, value in fields.items() if value is not None}
    fields["max_tokens"] = request.max_tokens
    if request.stop:
        fields["stop"] = list(request.stop)
    if request.logprobs is not None:
        fields["logprobs"] = request.logprobs
    shapes = {"json": request.json_schema, "regex": request.regex, "grammar": request.grammar}
    asked = {name: shape for name, shape in shapes.items() if shape is not None}
    if asked:
        fields["structured_outputs"] = asked
    return fields


class VllmAnswer:
    """One answer: vLLM's outputs in, chunks out. `text` is what its text goes through, `likely` how many likely tokens
    go with each; times are the loop's, in seconds."""

    def __init__(self, text: AnswerText, *, likely: int, started: float) -> None:
        self.begun = False
        self._text = text
        self._likely = likely
        self._started = started
        self._first: float | None = None
        self._usage = Usage()
        self._reason: str | None = None
        self._stats: Any = None

    def read(self, output: Any, now: float) -> list[Chunk]:
        (answer,) = output.outputs
        chunks: list[Chunk] = []
        if answer.text:
            self._text.text(answer.text, chunks)
        if answer.logprobs:
            self._text.logprobs(_logprobs(answer.token_ids, answer.logprobs, self._likely), chunks)
        if output.finished:
            self._text.end(chunks)
            self._reason, self._stats = answer.finish_reason, output.metrics
        self._count(output, len(answer.token_ids))
        if answer.token_ids:
            self.begun = True
            self._first = self._first or now
        return chunks

    def _count(self, output: Any, more: int) -> None:
        self._usage = Usage(
            input_tokens=len(output.prompt_token_ids or ()),
            output_tokens=self._usage.output_tokens + more,
            cached_tokens=output.num_cached_tokens or self._usage.cached_tokens,
        )

    def finish(self, now: float) -> Finish:
        """Raises EngineDied for an answer that was broken off."""
        reason = _REASONS.get(self._reason or "")
        if reason is None:
            raise EngineDied(f"vLLM broke off its answer ({self._reason}).", hint="Its log says why.")
        first = None if self._first is None else (self._first - self._started) * 1000
        timing = Timing(first_token_ms=first, total_ms=(now - self._started) * 1000, **_account(self._stats, first))
        return Finish(reason=reason, usage=self._usage, timing=timing)


def _account(stats: Any, first: float | None) -> dict[str, float]:
    """How long it waited, read and spoke, by vLLM's own clock."""
    if stats is None or first is None or not stats.first_token_ts:
        return {}
    return {
        "queued_ms": min(first, max(0.0, (stats.scheduled_ts - stats.queued_ts) * 1000)),
        "prefill_ms": max(0.0, (stats.first_token_ts - stats.scheduled_ts) * 1000),
        "decode_ms": max(0.0, (stats.last_token_ts - stats.first_token_ts) * 1000),
    }


def _logprobs(chosen: Sequence[int], positions: Sequence[Mapping[int, Any]], likely: int) -> list[TokenLogprob]:
    """vLLM tells of the likeliest tokens at a place, and of the chosen one where it is none of them."""
    return [_chosen(token, place, likely) for token, place in zip(chosen, positions, strict=True)]


def _chosen(token: int, place: Mapping[int, Any], likely: int) -> TokenLogprob:
    ranked = sorted(place.values(), key=lambda entry: -entry.logprob)[:likely]
    top = tuple(TokenLogprob(token=entry.decoded_token or "", logprob=entry.logprob) for entry in ranked)
    return TokenLogprob(token=place[token].decoded_token or "", logprob=place[token].logprob, top=top)
