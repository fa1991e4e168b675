"""The embedded llama.cpp server, in a process of its own: `python -m headrace.engine.llamacpp_child`.

Its parent writes one line of JSON to stdin (`LlamaCppParameters`) and keeps stdin open; when it closes, this process
ends, whatever the server is doing. On stdout come lines of JSON: `{"state":"loading"}`, then `{"state":"ready",
"url":…}` or `{"state":"failed","reason":…}`. What llama.cpp prints goes to stderr, which the parent points at a log.

A process of its own, because llama.cpp may abort() and its threads compete with the event loop.
"""

import ctypes
import os
import signal
import sys
from typing import Any

import msgspec

_PR_SET_PDEATHSIG = 1
_BATCH = 32
_PROMPTS_MIB = 256  # of prompts that were read and lost their slot; its default would take 8 GiB


class LlamaCppParameters(msgspec.Struct, frozen=True, kw_only=True):
    """`context` is tokens per slot, `kv` the type of the cache (`f16`, `q8_0`, `q4_0`)."""

    model_path: str
    alias: str
    api_key: str
    threads: int
    context: int
    slots: int
    kv: str
    parent: int


class ChildState(msgspec.Struct, frozen=True, omit_defaults=True):
    state: str
    url: str = ""
    reason: str = ""


def main() -> None:
    parameters = msgspec.json.decode(sys.stdin.buffer.readline(), type=LlamaCppParameters)
    _end_with(parameters.parent)
    report = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # llama.cpp must not write between our lines
    report.write(_line(ChildState("loading")))
    try:
        server = _serve(parameters)
    except Exception as exc:
        report.write(_line(ChildState("failed", reason=str(exc) or type(exc).__name__)))
        os._exit(1)
    report.write(_line(ChildState("ready", url=str(server.listening_address))))
    sys.stdin.buffer.read()
    os._exit(0)  # without waiting for generations that nobody reads


def _end_with(parent: int) -> None:
    """The end of stdin says that the parent is gone; on Linux the kernel says it even while a library blocks."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)  # it went before the kernel was asked


def _serve(parameters: LlamaCppParameters) -> Any:
    import xllamacpp

    kv = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{parameters.kv.upper()}")
    params = xllamacpp.CommonParams()
    params.model.path = parameters.model_path
    params.model_alias = {parameters.alias}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [parameters.api_key]
    params.cors_origins = "http://127.0.0.1"  # its default lets every web page in
    params.cors_origins_explicit = True
    params.ui = False
    params.endpoint_slots = True
    # Between two batches a generation can be cancelled and others get their tokens; larger ones are no faster here.
    params.n_batch = params.n_ubatch = _BATCH
    params.n_parallel = parameters.slots
    params.n_ctx = parameters.context * parameters.slots
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = parameters.threads
    params.cache_ram_mib = _PROMPTS_MIB
    params.cache_type_k = params.cache_type_v = kv
    return xllamacpp.Server(params)


def _line(state: ChildState) -> bytes:
    return msgspec.json.encode(state) + b"\n"


if __name__ == "__main__":
    main()
