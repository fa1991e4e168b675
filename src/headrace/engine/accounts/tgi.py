"""What TGI says of itself, at `/info`. Version 3 no longer says of what type its weights are; none says how they are
quantized or how much of the memory it takes.

https://github.com/huggingface/text-generation-inference/blob/main/router/src/lib.rs
"""

from collections.abc import Iterator, Sequence

from headrace.engine.accounts.capacity import Capacity
from headrace.engine.accounts.reading import count, decode, fields
from headrace.engine.accounts.remark import Remark

PATHS = CAPACITY_PATHS = ("/info",)


def is_it(info: bytes) -> bool:
    return "max_total_tokens" in fields(decode(info))


def capacity(info: object, _model: str = "") -> Capacity:
    """From `/info`. One request more than its slots is refused by it."""
    said = fields(info)
    return Capacity(count(said.get("max_total_tokens")), count(said.get("max_concurrent_requests")))


def remarks(bodies: Sequence[bytes]) -> Iterator[Remark]:
    """From the body at `/info`."""
    info = fields(decode(bodies[0]))
    held = capacity(info)
    yield Remark("ok", f"TGI {info.get('version') or 'of an unknown version'}")
    if kind := info.get("model_dtype"):
        yield Remark("ok", f"weights: {kind}")
    prompt = info.get("max_input_tokens") or info.get("max_input_length") or "?"
    yield Remark("ok", f"context: {held.context_tokens or '?'} tokens, {prompt} of them for the prompt")
    if held.slots:
        yield Remark("ok", f"at most {held.slots} requests at once, more are refused")
    if batch := info.get("max_batch_total_tokens"):
        yield Remark("ok", f"KV cache: {batch} tokens for all answers together")
