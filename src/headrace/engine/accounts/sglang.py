"""What SGLang says of itself, at `/server_info`, in older releases at `/get_server_info`: the arguments of its start,
and what its scheduler made of them.

https://docs.sglang.ai/advanced_features/server_arguments.html
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.engine.accounts.capacity import Capacity
from headrace.engine.accounts.reading import count, decode, entries, fields, number
from headrace.engine.accounts.remark import MOST_OF_MEMORY, Remark, head_room

PATHS = ("/server_info",)
OLDER_PATHS = ("/get_server_info",)
CAPACITY_PATHS = (*PATHS, *OLDER_PATHS)


def is_it(info: bytes) -> bool:
    return "mem_fraction_static" in fields(decode(info))


def capacity(info: object, _model: str = "") -> Capacity:
    """From the answer at either path. It has an internal state for each data-parallel rank. What was asked for at its
    start may be more than it has got."""
    ranks = entries(fields(info).get("internal_states"))
    return Capacity(slots=sum(count(rank.get("effective_max_running_requests_per_dp")) or 0 for rank in ranks) or None)


def remarks(bodies: Sequence[bytes]) -> Iterator[Remark]:
    """From the body at either path."""
    info = fields(decode(bodies[0]))
    yield Remark("ok", f"SGLang {info.get('version') or 'of an unknown version'}")
    yield Remark("ok", f"weights: {info.get('dtype', '?')}, quantization {info.get('quantization') or 'none'}")
    held = info.get("max_total_num_tokens") or "?"
    yield Remark("ok", f"KV cache: {held} tokens, type {info.get('kv_cache_dtype') or 'auto'}")
    if slots := capacity(info).slots:
        yield Remark("ok", f"at most {slots} answers at once")
    yield from _scheduling(info)
    if part := number(info.get("mem_fraction_static")):
        yield head_room(part, f"--mem-fraction-static {MOST_OF_MEMORY} leaves room for peaks.")
    if method := info.get("speculative_algorithm"):
        yield Remark("ok", f"speculative decoding: {method}, {info.get('speculative_num_draft_tokens')} tokens ahead")
    for name, words in (("tp_size", "tensor parallel over {} devices"), ("pp_size", "pipeline of {} stages")):
        if (size := info.get(name) or 1) != 1:
            yield Remark("ok", words.format(size))


def _scheduling(info: Mapping[str, Any]) -> Iterator[Remark]:
    if info.get("disable_radix_cache"):
        yield Remark("note", "The prefix cache is off: every turn reads its whole conversation again.")
    if (chunk := number(info.get("chunked_prefill_size"))) > 0:
        yield Remark("ok", f"chunked prefill: at most {chunk:.0f} tokens a step")
    elif chunk:  # -1; older releases say nothing
        yield Remark("note", "Chunked prefill is off: a long prompt holds up everybody's tokens.")
    if info.get("disable_cuda_graph") and info.get("device") == "cuda":
        yield Remark("note", "CUDA graphs are off: with them small batches are faster.")
