"""What the connections to a process of ours make of bytes that are HTTP, or are not."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from harness import run_async
from headrace.engine.upstream.loopback import LoopbackUpstream
from headrace.engine.upstream.port import Timeouts
from headrace.errors import EngineDied, EngineError, EngineTimeout, EngineUnavailable

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\n"
SIZED = HEAD + b"Content-Length: 8\r\n\r\n" + '"帮忙"'.encode()
CHUNKED = HEAD + b'Transfer-Encoding: chunked\r\n\r\n4\r\n"\xe5\xb8\xae\r\n4\r\n\xe5\xbf\x99"\r\n0\r\n\r\n'


@asynccontextmanager
async def saying(*pieces: bytes, stay: bool = False) -> AsyncIterator[tuple[LoopbackUpstream, list[bytes]]]:
    """A server that says this to every request, and the requests that it got."""
    asked: list[bytes] = []
    at_work: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        at_work.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError):
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0)
            if stay:
                await reader.read()
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, LoopbackUpstream(f"http://127.0.0.1:{port}", api_key="k") as upstream:
        yield upstream, asked
        await upstream.__aexit__()
        await asyncio.gather(*(task for task in at_work if task is not None))


async def fetched(*pieces: bytes, stay: bool = False) -> bytes:
    async with saying(*pieces, stay=stay) as (upstream, _):
        return await upstream.fetch("/x", {"a": 1})


@pytest.mark.parametrize("said", [SIZED, CHUNKED], ids=["sized", "chunked"])
def test_a_response_cut_anywhere_is_the_same(said: bytes) -> None:
    whole = run_async(fetched(said))
    assert whole.startswith('"帮忙'.encode())
    for cut in range(1, len(said)):
        assert run_async(fetched(said[:cut], said[cut:])) == whole


@pytest.mark.parametrize("said", [SIZED, CHUNKED], ids=["sized", "chunked"])
def test_a_response_that_has_ended_is_whole_though_the_server_stays(said: bytes) -> None:
    run_async(fetched(said, stay=True), deadline=5)


@pytest.mark.parametrize("said", [SIZED[:-1], CHUNKED[:-5], CHUNKED[:-12]], ids=["sized", "chunked", "in a chunk"])
def test_a_response_that_breaks_off_has_died(said: bytes) -> None:
    with pytest.raises(EngineDied, match="broke"):
        run_async(fetched(said))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"", "closed"),
        (HEAD[:20], "closed"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "no HTTP"),
        (HEAD + b"X: " + b"x" * 100_000, "no end of headers"),
    ],
    ids=["nothing", "half a head", "another protocol", "an endless head"],
)
def test_who_does_not_answer_in_http_is_unreachable(said: bytes, why: str) -> None:
    with pytest.raises(EngineUnavailable, match=why):
        run_async(fetched(said), deadline=5)


def test_noise_in_the_middle_of_an_answer_is_the_end_of_it() -> None:
    with pytest.raises(EngineDied, match="no HTTP"):
        run_async(fetched(CHUNKED[:-12], b"\r\nzz\r\n"))


def test_a_request_says_what_it_is_and_that_it_is_the_only_one() -> None:
    async def scenario() -> None:
        async with saying(SIZED) as (upstream, asked):
            await upstream.post("/chat", {}, request_id="r_1")
            await upstream.post("/chat", {}, request_id="r\r\n1")
            assert await upstream.get("/slots?all=1")
        first, second, third = (request.decode() for request in asked)
        assert first.startswith("POST /v1/chat HTTP/1.1\r\n")
        assert {"Connection: close", "Authorization: Bearer k", "X-Request-Id: r_1", "Content-Length: 2"} < set(
            first.split("\r\n")
        )
        assert "X-Request-Id" not in second
        assert third.startswith("GET /slots?all=1 HTTP/1.1\r\n")

    run_async(scenario())


def test_it_must_be_entered() -> None:
    upstream = LoopbackUpstream("http://127.0.0.1:9")
    with pytest.raises(EngineUnavailable, match="not open"):
        run_async(upstream.get("/slots"))


def test_a_connection_that_nobody_accepts_is_given_up() -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf:
            url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
            asking = [asyncio.ensure_future(_get(url)) for _ in range(6)]  # more than the system itself accepts
            done, rest = await asyncio.wait(asking, timeout=1)
            for task in rest:
                task.cancel()
            await asyncio.wait(asking)
        errors = [task.exception() for task in done]
        assert errors
        assert all(isinstance(error, EngineTimeout) and "within 0.2 s (connect)" in str(error) for error in errors)

    run_async(scenario())


async def _get(url: str) -> bytes:
    async with LoopbackUpstream(url, timeouts=Timeouts(connect=0.2)) as upstream:
        return await upstream.get("/")


def test_leaving_ends_what_is_under_way() -> None:
    async def scenario() -> None:
        async with saying(HEAD + b"Content-Length: 9\r\n\r\n", stay=True) as (upstream, _):
            answer = await upstream.post("/x", {})
            reading = asyncio.ensure_future(answer.readany())
            await asyncio.sleep(0)
            await upstream.__aexit__()
            with pytest.raises(ConnectionError, match="engine was closed"):
                await reading
            with pytest.raises(EngineError, match="not open"):
                await upstream.post("/x", {})

    run_async(scenario())
