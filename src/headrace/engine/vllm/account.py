"""What a vLLM server says of itself, as remarks for an operator: which of the settings that matter are on. Pure.

`/metrics` and `/version` are always there. `/server_info` is only with `VLLM_SERVER_DEV_MODE=1`, because it tells too
much for a server that strangers reach.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

HEAD_ROOM = 0.9
"""The part of the memory above which little is left for what the profiling at the start has not seen."""

_SERIES = re.compile(r"^vllm:(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Remark(msgspec.Struct, frozen=True):
    level: Literal["ok", "note"]
    text: str


class Metrics:
    """A page of Prometheus metrics. Those that are not there are 0, or have no labels."""

    def __init__(self, page: str) -> None:
        self._series = [(found["name"], found["labels"] or "", found["value"]) for found in _SERIES.finditer(page)]

    def total(self, name: str) -> float:
        return sum(float(value) for series, _, value in self._series if series == name)

    def labels(self, name: str) -> Mapping[str, str]:
        return next((dict(_LABEL.findall(labels)) for series, labels, _ in self._series if series == name), {})


def is_vllm(metrics: bytes) -> bool:
    """Whether these are its metrics."""
    return b"vllm:cache_config_info" in metrics


def remarks(*, version: bytes, metrics: bytes, info: bytes) -> Iterator[Remark]:
    """From the bodies at `/version`, `/metrics` and `/server_info?config_format=json`; what cannot be read is left
    out."""
    page = Metrics(metrics.decode("utf-8", "replace"))
    cache = page.labels("cache_config_info")
    settings = _object(_object(_decode(info)).get("vllm_config"))
    known = _object(_decode(version)).get("version", "of an unknown version")
    yield Remark("ok", f"vLLM {known}, {int(page.total('num_requests_running'))} requests running")
    on_gpu = _object(settings.get("device_config")).get("device") != "cpu"
    yield from _cache_remarks(cache, page, on_gpu=on_gpu)
    if preempted := int(page.total("num_preemptions_total")):
        hint = "A larger KV cache, an FP8 one, or fewer --max-num-seqs."
        yield Remark("note", f"{preempted} answers were interrupted because the KV cache was full. {hint}")
    yield from _speculation_remarks(_object(settings.get("speculative_config")), page)
    if settings:
        yield from _setting_remarks(settings, on_gpu=on_gpu)
    else:
        yield Remark("ok", "its other settings are not shown: that takes VLLM_SERVER_DEV_MODE=1, not in public")


def _cache_remarks(cache: Mapping[str, str], page: Metrics, *, on_gpu: bool) -> Iterator[Remark]:
    size = cache.get("kv_cache_size_tokens", "?")
    yield Remark("ok", f"KV cache: {size} tokens, type {cache.get('cache_dtype', '?')}")
    if cache.get("enable_prefix_caching") == "True":
        asked, hits = page.total("prefix_cache_queries_total"), page.total("prefix_cache_hits_total")
        shown = f"{hits / asked:.0%} of {asked:.0f} prompt tokens were in it" if asked else "nothing asked yet"
        yield Remark("ok", f"prefix cache: {shown}")
    else:
        yield Remark("note", "The prefix cache is off: every turn reads its whole conversation again.")
    part = _number(cache.get("gpu_memory_utilization", ""))
    if on_gpu and part > HEAD_ROOM:
        hint = "--gpu-memory-utilization 0.8 leaves room for peaks."
        yield Remark("note", f"It takes {part:.0%} of the memory of a GPU. {hint}")
    elif on_gpu and part:
        yield Remark("ok", f"head-room: it takes {part:.0%} of the memory of a GPU")


def _speculation_remarks(settings: Mapping[str, Any], page: Metrics) -> Iterator[Remark]:
    if settings:
        method, count = settings.get("method", "?"), settings.get("num_speculative_tokens", "?")
        yield Remark("ok", f"speculative decoding: {method}, {count} tokens ahead")
    if drafted := page.total("spec_decode_num_draft_tokens_total"):
        rate = page.total("spec_decode_num_accepted_tokens_total") / drafted
        text = f"speculative decoding: {rate:.0%} of {drafted:.0f} drafted tokens were right"
        yield Remark("ok" if rate > 0.3 else "note", text)


def _setting_remarks(settings: Mapping[str, Any], *, on_gpu: bool) -> Iterator[Remark]:
    model, cache, scheduler = (_object(settings.get(f"{part}_config")) for part in ("model", "cache", "scheduler"))
    quantization = model.get("quantization") or "none"
    yield Remark("ok", f"weights: {model.get('dtype', '?')}, quantization {quantization}")
    if window := cache.get("sliding_window"):
        yield Remark("ok", f"sliding window: all layers see {window} tokens back")
    if scheduler.get("enable_chunked_prefill") is False:
        yield Remark("note", "Chunked prefill is off: a long prompt holds up everybody's tokens.")
    elif budget := scheduler.get("max_num_batched_tokens"):
        yield Remark("ok", f"chunked prefill: at most {budget} tokens a step")
    if on_gpu:
        yield from _graph_remarks(model, _object(settings.get("compilation_config")))
    if scheduler.get("policy") != "priority":
        yield Remark(
            "ok", "first come, first served: offline work waits in line with people (--scheduling-policy priority)"
        )
    yield from _parallel_remarks(_object(settings.get("parallel_config")))


def _graph_remarks(model: Mapping[str, Any], compilation: Mapping[str, Any]) -> Iterator[Remark]:
    sizes = compilation.get("cudagraph_capture_sizes")
    if model.get("enforce_eager"):
        yield Remark("note", "It runs eagerly: without --enforce-eager CUDA graphs make small batches faster.")
    elif isinstance(sizes, list) and sizes:
        yield Remark("ok", f"CUDA graphs: for batches of up to {max(sizes)} tokens")


def _parallel_remarks(parallel: Mapping[str, Any]) -> Iterator[Remark]:
    by = parallel.get("distributed_executor_backend") or "?"
    if (size := parallel.get("tensor_parallel_size", 1)) != 1:
        yield Remark("ok", f"tensor parallel over {size} devices, by {by}")
    if (stages := parallel.get("pipeline_parallel_size", 1)) != 1:
        yield Remark("ok", f"pipeline of {stages} stages, by {by}")


def _decode(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
