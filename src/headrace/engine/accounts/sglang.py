"""What SGLang says of itself, at `/server_info`, in older releases at `/get_server_info`: the arguments of its start,
and what its scheduler made of them.

https://docs.sglang.ai/advanced_features/server_arguments.html
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.engine.accounts.reading import decode, entries, fields, number
from headrace.engine.accounts.remark import MOST_OF_MEMORY, Remark, head_room

PATHS = ("/server_info",)
OLDER_PATHS = ("/get_server_info",)


def is_it(info: bytes) -> bool:
    return "mem_fraction_static" in fields(decode(info))


def remarks(bodies: Sequence[bytes]) -> Iterator[Remark]:
    """From the body at either path."""
    info = fields(decode(bodies[0]))
    states = entries(info.get("internal_states"))
    yield Remark("ok", f"SGLang {info.get('version') or 'of an unknown version'}")
    yield Remark("ok", f"weights: {info.get('dtype', '?')}, quantization {info.get('quantization') or 'none'}")
    size = info.get("max_total_num_tokens") or "?"
    yield Remark("ok", f"KV cache: {size} tokens, type {info.get('kv_cache_dtype') or 'auto'}")
    if slots := sum(int(number(state.get("effective_max_running_requests_per_dp"))) for state in states):
        yield Remark("ok", f"at most {slots} answers at once")
    yield from _scheduling(info)
    if part := number(info.get("mem_fraction_static")):
        yield head_room(part, f"--mem-fraction-static {MOST_OF_MEMORY} leaves room for peaks.")
    if method := info.get("speculative_algorithm"):
        yield Remark("ok", f"speculative decoding: {method}, {info.get('speculative_num_draft_tokens')} tokens ahead")
    for name, words in (("tp_size", "tensor parallel over {} devices"), ("pp_size", "pipeline of {} stages")):
        if (count := info.get(name) or 1) != 1:
            yield Remark("ok", words.format(count))


def _scheduling(info: Mapping[str, Any]) -> Iterator[Remark]:
    if info.get("disable_radix_cache"):
        yield Remark("note", "The prefix cache is off: every turn reads its whole conversation again.")
    if (chunk := number(info.get("chunked_prefill_size"))) > 0:
        yield Remark("ok", f"chunked prefill: at most {chunk:.0f} tokens a step")
    elif chunk:  # -1; older releases say nothing
        yield Remark("note", "Chunked prefill is off: a long prompt holds up everybody's tokens.")
    if info.get("disable_cuda_graph") and info.get("device") == "cuda":
        yield Remark("note", "CUDA graphs are off: with them small batches are faster.")
