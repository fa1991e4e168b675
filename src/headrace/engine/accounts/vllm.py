"""What a vLLM server says of itself: which of the settings that matter are on, and how much it holds. Pure.

`/metrics` and `/version` are always there. `/server_info` is only with `VLLM_SERVER_DEV_MODE=1`, because it tells too
much for a server that strangers reach.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.engine.accounts.capacity import Capacity
from headrace.engine.accounts.reading import Metrics, count, decode, fields, number
from headrace.engine.accounts.remark import MOST_OF_MEMORY, Remark, head_room

CAPACITY_PATHS = ("/server_info?config_format=json",)
PATHS = ("/metrics", "/version", *CAPACITY_PATHS)

_OF_EXPERTS = {"int8_per_channel_weight_only", "nvfp4_per_token"}
"""Of a model vLLM quantizes only the experts with these (`_ONLINE_SHORTHANDS` in its config/quantization.py)."""

_SETTING = re.compile(r"(\w+)=([^,()\[\]]+)")
"""Of `AutoAWQConfig(quant_type=uint4, group_size=128, …)`, which is how `/server_info` shows a quantization."""


def is_it(metrics: bytes) -> bool:
    """Whether these are its metrics."""
    return b"vllm:cache_config_info" in metrics


def capacity(info: object, _model: str = "") -> Capacity:
    """From `/server_info`."""
    return Capacity(slots=_slots(fields(fields(info).get("vllm_config"))))


def checkpoint_of(info: bytes) -> str | None:
    """The folder, or the name in the hub, of the weights that it serves, from `/server_info`."""
    model = fields(fields(fields(decode(info)).get("vllm_config")).get("model_config")).get("model")
    return model if isinstance(model, str) and model else None


def checkpoint_remarks(config: bytes) -> Iterator[Remark]:
    """From the `config.json` of its weights: what vLLM knows of their quantization and does not say."""
    how = fields(fields(decode(config)).get("quantization_config"))
    if how.get("quant_method") == "bitsandbytes" and how.get("load_in_4bit"):
        kind = str(how.get("bnb_4bit_quant_type", "fp4")).upper()
        undone = "with double quantization, of which vLLM undoes the second step while it loads"
        doubled = undone if how.get("bnb_4bit_use_double_quant") else "without double quantization"
        yield Remark("ok", f"the checkpoint: {kind} {doubled}")
    for group in fields(how.get("config_groups")).values():  # of compressed-tensors
        parts = {"weights": "weights", "input_activations": "activations"}
        given = {words: fields(fields(group).get(name)) for name, words in parts.items()}
        said = [
            f"{words} of {one['num_bits']} bits ({one.get('type')})"
            for words, one in given.items()
            if "num_bits" in one
        ]
        if said:
            yield Remark("ok", f"the checkpoint: {', '.join(said)}")


def remarks(bodies: Sequence[bytes]) -> Iterator[Remark]:
    """From the bodies at `PATHS`; what cannot be read is left out."""
    metrics, version, info = bodies
    page = Metrics(metrics)
    cache = page.labels("vllm:cache_config_info")
    settings = fields(fields(decode(info)).get("vllm_config"))
    known = fields(decode(version)).get("version", "of an unknown version")
    yield Remark("ok", f"vLLM {known}, {page.total('vllm:num_requests_running'):.0f} requests running")
    on_gpu = fields(settings.get("device_config")).get("device") != "cpu"
    yield from _cache_remarks(cache, page, on_gpu=on_gpu)
    if (preempted := page.total("vllm:num_preemptions_total")) >= 1:
        hint = "A larger KV cache, an FP8 one, or fewer --max-num-seqs."
        yield Remark("note", f"{preempted:.0f} answers were interrupted because the KV cache was full. {hint}")
    yield from _speculation_remarks(fields(settings.get("speculative_config")), page)
    if settings:
        yield from _setting_remarks(settings, on_gpu=on_gpu)
    else:
        yield Remark("ok", "its other settings are not shown: that takes VLLM_SERVER_DEV_MODE=1, not in public")


def _cache_remarks(cache: Mapping[str, str], page: Metrics, *, on_gpu: bool) -> Iterator[Remark]:
    size = cache.get("kv_cache_size_tokens", "?")
    yield Remark("ok", f"KV cache: {size} tokens, type {cache.get('cache_dtype', '?')}")
    if cache.get("enable_prefix_caching") == "True":
        asked, hits = page.total("vllm:prefix_cache_queries_total"), page.total("vllm:prefix_cache_hits_total")
        shown = f"{hits / asked:.0%} of {asked:.0f} prompt tokens were in it" if asked else "nothing asked yet"
        yield Remark("ok", f"prefix cache: {shown}")
    else:
        yield Remark("note", "The prefix cache is off: every turn reads its whole conversation again.")
    if given := number(cache.get("kv_cache_memory_bytes")):  # then it looks at no part of the memory
        yield Remark("ok", f"KV cache: {given / 1e9:.1f} GB, as was asked for")
    elif on_gpu and (part := number(cache.get("gpu_memory_utilization"))):
        yield head_room(part, f"--gpu-memory-utilization {MOST_OF_MEMORY} leaves room for peaks.")


def _speculation_remarks(settings: Mapping[str, Any], page: Metrics) -> Iterator[Remark]:
    if settings:
        method, count = settings.get("method", "?"), settings.get("num_speculative_tokens", "?")
        yield Remark("ok", f"speculative decoding: {method}, {count} tokens ahead")
    if drafted := page.total("vllm:spec_decode_num_draft_tokens_total"):
        rate = page.total("vllm:spec_decode_num_accepted_tokens_total") / drafted
        text = f"speculative decoding: {rate:.0%} of {drafted:.0f} drafted tokens were right"
        yield Remark("ok" if rate > 0.3 else "note", text)


def _setting_remarks(settings: Mapping[str, Any], *, on_gpu: bool) -> Iterator[Remark]:
    model, cache, scheduler = (fields(settings.get(f"{part}_config")) for part in ("model", "cache", "scheduler"))
    parallel = fields(settings.get("parallel_config"))
    yield from _weight_remarks(model, settings.get("quant_config"), experts=parallel.get("is_moe_model") is not False)
    if window := cache.get("sliding_window"):
        yield Remark("ok", f"sliding window: all layers see {window} tokens back")
    if scheduler.get("enable_chunked_prefill") is False:
        yield Remark("note", "Chunked prefill is off: a long prompt holds up everybody's tokens.")
    elif budget := scheduler.get("max_num_batched_tokens"):
        yield Remark("ok", f"chunked prefill: at most {budget} tokens a step")
    if on_gpu:
        yield from _graph_remarks(model, fields(settings.get("compilation_config")))
    if slots := _slots(settings):
        yield Remark("ok", f"at most {slots} answers at once")
    if scheduler.get("policy") != "priority":
        yield Remark(
            "ok", "first come, first served: offline work waits in line with people (--scheduling-policy priority)"
        )
    yield from _parallel_remarks(parallel)


def _slots(settings: Mapping[str, Any]) -> int | None:
    """Every data-parallel rank has a scheduler of its own, and an API server in front of all of them or of those beside
    it."""
    ranks = fields(settings.get("parallel_config"))
    beside = ranks.get("data_parallel_external_lb") or ranks.get("data_parallel_hybrid_lb")
    schedulers = count(ranks.get("data_parallel_size_local" if beside else "data_parallel_size")) or 1
    each = count(fields(settings.get("scheduler_config")).get("max_num_seqs"))
    return each * schedulers if each else None


def _weight_remarks(model: Mapping[str, Any], how: object, *, experts: bool) -> Iterator[Remark]:
    quantization = model.get("quantization") or "none"
    yield Remark("ok", f"weights: {model.get('dtype', '?')}, quantization {quantization}{_details(how)}")
    if isinstance(quantization, str) and quantization in _OF_EXPERTS and not experts:
        yield Remark("note", f"{quantization} quantizes experts only, and this model has none: nothing is smaller.")


def _details(how: object) -> str:
    """What is behind the name of a quantization, in brackets."""
    settings = dict(_SETTING.findall(how)) if isinstance(how, str) else {}
    kind = settings.get("bnb_4bit_quant_type" if settings.get("load_in_4bit") == "True" else "quant_type")
    size = settings.get("group_size")
    said = [*([kind] if kind else []), *([f"groups of {size}"] if size else [])]
    return f" ({', '.join(said)})" if said else ""


def _graph_remarks(model: Mapping[str, Any], compilation: Mapping[str, Any]) -> Iterator[Remark]:
    sizes = compilation.get("cudagraph_capture_sizes")
    batches = [batch for size in sizes if (batch := count(size))] if isinstance(sizes, list) else []
    if model.get("enforce_eager"):
        yield Remark("note", "It runs eagerly: without --enforce-eager CUDA graphs make small batches faster.")
    elif batches:
        yield Remark("ok", f"CUDA graphs: for batches of up to {max(batches)} tokens")


def _parallel_remarks(parallel: Mapping[str, Any]) -> Iterator[Remark]:
    by = parallel.get("distributed_executor_backend") or "?"
    if (size := parallel.get("tensor_parallel_size", 1)) != 1:
        yield Remark("ok", f"tensor parallel over {size} devices, by {by}")
    if (stages := parallel.get("pipeline_parallel_size", 1)) != 1:
        yield Remark("ok", f"pipeline of {stages} stages, by {by}")
