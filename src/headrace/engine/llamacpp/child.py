"""The embedded llama.cpp server, in a process of its own: `python -m headrace.engine.llamacpp.child`.

A process of its own, because llama.cpp may abort() and its threads compete with the event loop; and one that outlives
the server that started it, so that a restart finds the weights loaded and the prompts read.

It reads one line of JSON from stdin (`Order`), writes one to stdout (`ProcessAddress`) and lets go of both. Then it
loads the model, which answers to nobody, and receives servers until it may end (`reception.py`). What
llama.cpp prints goes to stderr, which whoever started it points at a log.
"""

import os
import secrets
import socket
import sys
from pathlib import Path
from typing import Any

import msgspec

from headrace.engine.cores import give_way
from headrace.engine.llamacpp.parameters import (
    LlamaCppParameters,
    ProcessAddress,
    ProcessState,
    remove_address,
    write_address,
)
from headrace.engine.llamacpp.reception import Reception

_GUESSES = (
    7  # tokens ahead, for each slot: more are seldom all right, and on a CPU each costs nearly as much as a token
)


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """`place` is the folder where servers look for the process; None for one that only its starter uses."""

    parameters: LlamaCppParameters
    place: str | None = None


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    if os.fork():
        os._exit(0)  # so that init, and not a server that may be gone, learns of the end of the other
    give_way()
    listener = socket.create_server(("127.0.0.1", 0))
    parameters = order.parameters
    address = ProcessAddress(
        pid=os.getpid(),
        port=listener.getsockname()[1],
        secret=secrets.token_urlsafe(32),
        parameters=parameters,
    )
    if order.place is not None:
        write_address(Path(order.place), address)
    _let_go(msgspec.json.encode(address) + b"\n")
    try:
        servers = _serve(parameters, address.secret)
        urls = [str(server.listening_address) for server in servers]
        state = ProcessState(url=urls[0], embedder=urls[-1] if parameters.pooling is not None else "")
    except Exception as exc:
        state = ProcessState(failed=str(exc) or type(exc).__name__)
    linger = 0.0 if state.failed else parameters.linger
    Reception(listener, secret=address.secret, state=state, linger=linger).run()
    if order.place is not None:
        remove_address(Path(order.place), address.pid)
    os._exit(bool(state.failed))  # without waiting for generations that nobody reads


def _let_go(said: bytes) -> None:
    """Say where it listens, then leave the pipes and the folder of whoever started it."""
    os.write(1, said)
    os.dup2(2, 1)  # llama.cpp prints there too
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.chdir("/")


def _serve(parameters: LlamaCppParameters, secret: str) -> list[Any]:
    """Loads the model. Holds the GIL meanwhile."""
    import xllamacpp

    wanted = [_generating(xllamacpp, parameters, secret)] if parameters.generates else []
    if parameters.pooling is not None:
        wanted.append(_embedding(xllamacpp, parameters, secret))
    return [xllamacpp.Server(params) for params in wanted]


def _generating(xllamacpp: Any, parameters: LlamaCppParameters, secret: str) -> Any:
    params = _listening(xllamacpp, parameters, secret)
    params.n_batch = params.n_ubatch = _batch(parameters)
    params.n_parallel = parameters.slots
    params.n_ctx = parameters.context * parameters.slots
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = parameters.threads
    params.cache_ram_mib = parameters.prompts_mib  # of prompts that lost their slot; its default would take 8 GiB
    params.cache_type_k = params.cache_type_v = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{parameters.kv.upper()}")
    if parameters.snapshots is not None:
        params.slot_save_path = parameters.snapshots
        params.swa_full = True  # a sliding window's cache cannot be restored
    _guess_ahead(xllamacpp, params.speculative, parameters)
    return params


def _embedding(xllamacpp: Any, parameters: LlamaCppParameters, secret: str) -> Any:
    """One text after the other. Beside answers it has one thread: more would make those of the answers wait for each
    other."""
    params = _listening(xllamacpp, parameters, secret)
    pooling = f"LLAMA_POOLING_TYPE_{(parameters.pooling or '').upper()}"
    params.embedding = True
    params.pooling_type = getattr(xllamacpp.llama_pooling_type, pooling)
    params.n_batch = params.n_ubatch = parameters.batch if parameters.pooling == "last" else parameters.longest_text
    params.n_parallel = 1
    params.n_ctx = parameters.longest_text
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1 if parameters.generates else parameters.threads
    params.cache_ram_mib = 0
    return params


def _listening(xllamacpp: Any, parameters: LlamaCppParameters, secret: str) -> Any:
    """The model, on the loopback, for whoever knows the secret."""
    params = xllamacpp.CommonParams()
    params.model.path = parameters.model_path
    params.model_alias = {parameters.alias}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [secret]
    params.cors_origins = "http://127.0.0.1"  # its default lets every web page in
    params.cors_origins_explicit = True
    params.ui = False
    params.endpoint_slots = True
    return params


def _batch(parameters: LlamaCppParameters) -> int:
    """llama.cpp aborts when the guesses of all slots do not fit into one batch."""
    guesses = parameters.ngram or parameters.draft_path is not None
    return max(parameters.batch, parameters.slots * (1 + _GUESSES)) if guesses else parameters.batch


def _guess_ahead(xllamacpp: Any, speculative: Any, parameters: LlamaCppParameters) -> None:
    kinds = xllamacpp.common_speculative_type
    if parameters.draft_path is not None:
        speculative.draft.mparams.path = parameters.draft_path
        speculative.draft.n_max = min(speculative.draft.n_max, _GUESSES)
        speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    elif parameters.ngram:
        speculative.ngram_simple.size_m = _GUESSES
        speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]


if __name__ == "__main__":
    main()
