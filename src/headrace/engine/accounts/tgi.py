"""What TGI says of itself, at `/info`. Version 3 no longer says of what type its weights are; none says how they are
quantized or how much of the memory it takes.

https://github.com/huggingface/text-generation-inference/blob/main/router/src/lib.rs
"""

from collections.abc import Iterator, Sequence

from headrace.engine.accounts.reading import decode, fields
from headrace.engine.accounts.remark import Remark

PATHS = ("/info",)


def is_it(info: bytes) -> bool:
    return "max_total_tokens" in fields(decode(info))


def remarks(bodies: Sequence[bytes]) -> Iterator[Remark]:
    """From the body at `/info`."""
    info = fields(decode(bodies[0]))
    yield Remark("ok", f"TGI {info.get('version') or 'of an unknown version'}")
    if kind := info.get("model_dtype"):
        yield Remark("ok", f"weights: {kind}")
    prompt = info.get("max_input_tokens") or info.get("max_input_length") or "?"
    yield Remark("ok", f"context: {info['max_total_tokens']} tokens, {prompt} of them for the prompt")
    if count := info.get("max_concurrent_requests"):
        yield Remark("ok", f"at most {count} requests at once, more are refused")
    if batch := info.get("max_batch_total_tokens"):
        yield Remark("ok", f"KV cache: {batch} tokens for all answers together")
