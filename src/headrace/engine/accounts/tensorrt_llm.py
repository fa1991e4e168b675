"""What `trtllm-serve` says of itself: its version, and at `/metrics` the statistics of its latest steps. With the
PyTorch back end those need `enable_iter_perf_stats`, and who reads them takes them away from the next reader.
Quantization, parallelism and scheduling it tells nobody.

https://nvidia.github.io/TensorRT-LLM/commands/trtllm-serve/trtllm-serve.html
"""

from collections.abc import Iterator, Sequence

from headrace.engine.accounts.reading import decode, entries, fields, number
from headrace.engine.accounts.remark import Remark

PATHS = ("/metrics", "/version")


def is_it(metrics: bytes) -> bool:
    """No other server's metrics are a list, which is empty if no step was counted."""
    return isinstance(decode(metrics), list)


def remarks(bodies: Sequence[bytes]) -> Iterator[Remark]:
    """From the bodies at `PATHS`."""
    steps, version = (decode(body) for body in bodies)
    yield Remark("ok", f"TensorRT-LLM {fields(version).get('version') or 'of an unknown version'}")
    counted = entries(steps)
    if not counted:
        yield Remark("ok", "how it is set up is not shown: it takes enable_iter_perf_stats to see its KV cache")
        return
    last = counted[-1]
    cache = fields(last.get("kvCacheStats"))
    if size := number(cache.get("maxNumBlocks")) * number(cache.get("tokensPerBlock")):
        yield Remark("ok", f"KV cache: {size:.0f} tokens")
    if (reused := number(cache.get("reusedBlocks"))) + (missed := number(cache.get("missedBlocks"))):
        yield Remark("ok", f"prefix cache: {reused / (reused + missed):.0%} of {reused + missed:.0f} blocks were in it")
    if slots := last.get("maxNumActiveRequests"):
        yield Remark("ok", f"at most {slots} answers at once")
    if used := number(last.get("gpuMemUsage")):
        yield Remark("ok", f"it takes {used / 1e9:.1f} GB of the memory of a GPU")
