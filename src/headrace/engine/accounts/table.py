"""Which kinds of servers there are, and how each is known. Where nobody said whose a server is, it is known by what it
says: the first body of a kind is asked for, and if it is the kind's, the others are."""

from collections.abc import Awaitable, Callable, Iterator, Sequence

import msgspec

from headrace.engine.accounts import llama_server, sglang, tensorrt_llm, tgi, triton, vllm
from headrace.engine.accounts.remark import Remark


class Kind(msgspec.Struct, frozen=True):
    """`is_it` is given the body at the first of `paths`, `remarks` those at all of them, each empty if it cannot be
    had."""

    paths: tuple[str, ...]
    is_it: Callable[[bytes], bool]
    remarks: Callable[[Sequence[bytes]], Iterator[Remark]]


KINDS = (
    Kind(vllm.PATHS, vllm.is_it, vllm.remarks),
    Kind(tensorrt_llm.PATHS, tensorrt_llm.is_it, tensorrt_llm.remarks),
    Kind(triton.PATHS, triton.is_it, triton.remarks),
    Kind(llama_server.PATHS, llama_server.is_it, llama_server.remarks),
    Kind(sglang.PATHS, sglang.is_it, sglang.remarks),
    Kind(sglang.OLDER_PATHS, sglang.is_it, sglang.remarks),
    Kind(tgi.PATHS, tgi.is_it, tgi.remarks),
)


def beside(base_url: str, path: str) -> str:
    """Where a server says what it says of itself: next to its API, also behind a prefix that a proxy sends to it."""
    return base_url.removesuffix("/v1") + path


async def account_of(said_at: Callable[[str], Awaitable[bytes]]) -> tuple[Remark, ...]:
    """What the server says of itself. `said_at` gets the body at a path, empty where there is none, and is asked for
    some more than once. Nothing, if the server is of no kind that is known."""
    for kind in KINDS:
        if kind.is_it(await said_at(kind.paths[0])):
            return tuple(kind.remarks([await said_at(path) for path in kind.paths]))
    return ()
