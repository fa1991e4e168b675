"""What Triton's OpenAI front end says of itself: the metrics of the server behind it. How a model is configured is said
at `/v2/models/NAME/config` of another port, which is open with `--enable-kserve-frontends` only.

https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/metrics.html
"""

from collections.abc import Iterator, Sequence

from headrace.engine.accounts.reading import Metrics
from headrace.engine.accounts.remark import Remark, head_room

PATHS = ("/metrics",)


def is_it(metrics: bytes) -> bool:
    return b"nv_inference_request_success" in metrics


def remarks(bodies: Sequence[bytes]) -> Iterator[Remark]:
    """From the body at `/metrics`."""
    page = Metrics(bodies[0])
    yield Remark("ok", f"Triton, {page.total('nv_inference_request_success'):.0f} requests answered")
    blocks = page.by("kv_cache_block_type", "nv_trt_llm_kv_cache_block_metrics")
    if size := blocks.get("max", 0) * blocks.get("tokens_per", 0):
        yield Remark("ok", f"KV cache: {size:.0f} tokens")
    if slots := page.by("request_type", "nv_trt_llm_request_metrics").get("max"):
        yield Remark("ok", f"at most {slots:.0f} answers at once")
    used, of = (page.by("gpu_uuid", f"nv_gpu_memory_{which}_bytes") for which in ("used", "total"))
    parts = [used[gpu] / of[gpu] for gpu in used if of.get(gpu)]
    if parts:
        yield head_room(max(parts), "A smaller KV cache of its back end leaves room for peaks.")
