"""What the connections to a process of ours make of bytes that are HTTP, or are not, on both loops."""

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
import uvloop

from harness import until
from headrace.engine.upstream.connection import Connection
from headrace.engine.upstream.loopback import LoopbackUpstream
from headrace.engine.upstream.port import Timeouts
from headrace.errors import ConfigError, EngineDied, EngineProtocol, EngineRejected, EngineTimeout, EngineUnavailable

T = TypeVar("T")
TYPE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\n"
TEXT = '"帮忙"'.encode()
SIZED = TYPE + b"Content-Length: 8\r\n\r\n" + TEXT
CHUNKED = TYPE + b'Transfer-Encoding: chunked\r\n\r\n4\r\n"\xe5\xb8\xae\r\n4\r\n\xe5\xbf\x99"\r\n0\r\n\r\n'
UNTIL_CLOSED = TYPE + b"\r\n" + TEXT
INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + SIZED


class Loop:
    new: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"], autouse=True)
def loop(request: pytest.FixtureRequest) -> Iterator[None]:
    Loop.new = request.param
    yield
    Loop.new = asyncio.new_event_loop


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """A test that hangs fails after 10 seconds."""

    async def bounded() -> T:
        async with asyncio.timeout(10):
            return await coroutine

    with asyncio.Runner(loop_factory=Loop.new) as runner:
        return runner.run(bounded())


@asynccontextmanager
async def saying(
    *pieces: bytes, stay: bool = False, **settings: Any
) -> AsyncIterator[tuple[LoopbackUpstream, list[bytes]]]:
    """A server that says this to every request, and the heads of the requests that it got."""
    asked: list[bytes] = []
    at_work: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        at_work.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0.005)
            if stay:
                await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, LoopbackUpstream(f"http://127.0.0.1:{port}", **settings) as upstream:
        try:
            yield upstream, asked
        finally:
            await upstream.__aexit__()
            await asyncio.sleep(0.01)  # a connection that was made may not have been accepted yet
            await asyncio.gather(*(task for task in at_work if task is not None))


async def fetched(*pieces: bytes, stay: bool = False) -> bytes:
    async with saying(*pieces, stay=stay) as (upstream, _):
        return await upstream.fetch("/x", {"a": 1})


async def got(*pieces: bytes) -> bytes:
    async with saying(*pieces) as (upstream, _):
        return await upstream.get("/x")


async def parsed(*pieces: bytes) -> tuple[int, str, bytes]:
    """What a connection makes of these segments and of the end after them: status, type, body."""
    connection = Connection(asyncio.get_running_loop(), set())
    for piece in pieces:
        connection.data_received(piece)
    connection.connection_lost(None)
    await connection.ask(b"")
    body = b""
    while part := await connection.readany():
        body += part
    return connection.status, connection.content_type, body


@pytest.mark.parametrize("said", [SIZED, CHUNKED, UNTIL_CLOSED, INTERIM], ids=["sized", "chunked", "closed", "interim"])
def test_a_response_cut_anywhere_is_the_same(said: bytes) -> None:
    async def scenario() -> None:
        for first, second in itertools.combinations(range(len(said)), 2):
            pieces = said[:first], said[first:second], said[second:]
            assert await parsed(*filter(None, pieces)) == (200, "application/json", TEXT)

    run(scenario())


@pytest.mark.parametrize("said", [SIZED, CHUNKED, INTERIM], ids=["sized", "chunked", "interim"])
def test_a_response_that_has_ended_is_whole_though_the_server_stays(said: bytes) -> None:
    assert run(fetched(said[:60], said[60:], stay=True)) == TEXT


def test_what_comes_after_the_end_is_nobodys() -> None:
    assert run(fetched(SIZED + SIZED)) == TEXT
    assert run(fetched(SIZED + b"\0noise")) == TEXT


@pytest.mark.parametrize("said", [SIZED[:-1], CHUNKED[:-5], CHUNKED[:-12]], ids=["sized", "chunked", "in a chunk"])
def test_a_response_that_breaks_off_has_died(said: bytes) -> None:
    with pytest.raises(EngineDied, match="broke"):
        run(fetched(said))
    with pytest.raises(EngineUnavailable, match="cannot be reached"):  # who looks at it asks the next process
        run(got(said))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"", "closed"),
        (TYPE[:20], "closed"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "no HTTP"),
        (TYPE + b"X: " + b"x" * 100_000, "no end of headers"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\nPRI", "no HTTP"),
        (b"HTTP/1.1 000 Nothing\r\nContent-Length: 0\r\n\r\n", "closed"),
    ],
    ids=["nothing", "half a head", "another protocol", "an endless head", "an upgrade", "no status"],
)
def test_who_does_not_answer_in_http_is_unreachable(said: bytes, why: str) -> None:
    with pytest.raises(EngineUnavailable, match=why):
        run(fetched(said))


def test_noise_in_the_middle_of_an_answer_is_the_end_of_it() -> None:
    with pytest.raises(EngineDied, match="no HTTP"):
        run(fetched(CHUNKED[:-12], b"\r\nzz\r\n"))


def test_a_refusal_without_words_says_what_stands_beside_its_status() -> None:
    with pytest.raises(EngineUnavailable, match="Too Busy"):
        run(fetched(b"HTTP/1.1 503 Too Busy\r\nContent-Length: 0\r\n\r\n"))


def test_a_refusal_that_is_cut_is_the_refusal_that_its_status_says() -> None:
    with pytest.raises(EngineRejected):
        run(fetched(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 100\r\n\r\n{"))
    with pytest.raises(EngineRejected, match="who"):
        run(fetched(b'HTTP/1.1 401 Unauthorized\r\nContent-Type: application/json\r\n\r\n{"error":{"message":"who?"}}'))


def test_a_refusal_before_the_request_was_read_leaves_nothing_open() -> None:
    async def scenario() -> None:
        async with saying(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\n{}", stay=False) as (upstream, _):
            with pytest.raises((EngineRejected, EngineUnavailable)):
                await upstream.post("/x", {"prompt": "x" * 30_000_000})
            await asyncio.sleep(0.01)
            assert not upstream._open

    run(scenario())


def test_a_request_says_what_it_is_and_that_it_is_the_only_one() -> None:
    async def scenario() -> None:
        async with saying(SIZED, api_key="k") as (upstream, asked):
            await upstream.post("/chat", {}, request_id="r_1")
            await upstream.post("/chat", {}, request_id="r\r\n1")
            assert await upstream.get("/slots?all=1")
        first, second, third = (request.decode() for request in asked)
        assert first.startswith("POST /v1/chat HTTP/1.1\r\nHost: 127.0.0.1:")
        wanted = {"Connection: close", "Authorization: Bearer k", "X-Request-Id: r_1", "Content-Length: 2"}
        assert wanted < set(first.split("\r\n"))
        assert "X-Request-Id" not in second
        assert third.startswith("GET /slots?all=1 HTTP/1.1\r\n")

    run(scenario())


@pytest.mark.parametrize(
    ("url", "api_key"),
    [
        ("https://127.0.0.1:1", "k"),
        ("http://127.0.0.1:99999", "k"),
        ("http://127.0.0.1:1", "k\r\nX: y"),
        ("http://127.0.0.1:1", "\ud800"),
    ],
    ids=["encrypted", "no port", "two headers", "no character"],
)
def test_what_cannot_be_sent_is_refused_before_anything_is(url: str, api_key: str) -> None:
    with pytest.raises(ConfigError):
        LoopbackUpstream(url, api_key=api_key)


def test_it_must_be_entered() -> None:
    upstream = LoopbackUpstream("http://127.0.0.1:9")
    with pytest.raises(EngineUnavailable, match="not open"):
        run(upstream.get("/slots"))


def test_a_connection_that_nobody_accepts_is_given_up() -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf:
            url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
            asking = [asyncio.ensure_future(_ask(url)) for _ in range(6)]  # more than the system itself accepts
            done, rest = await asyncio.wait(asking, return_when=asyncio.FIRST_EXCEPTION)
            for task in rest:
                task.cancel()
            await asyncio.wait(asking)
        errors = [task.exception() for task in done]
        assert all(isinstance(error, EngineTimeout) and "within 0.2 s (connect)" in str(error) for error in errors)

    run(scenario())


async def _ask(url: str) -> bytes:
    async with LoopbackUpstream(url, timeouts=Timeouts(connect=0.2)) as upstream:
        return await upstream.get("/")


def test_whoever_reads_beside_another_is_told_and_the_other_reads_on() -> None:
    async def scenario() -> None:
        async with saying(CHUNKED[:-5], stay=True) as (upstream, _):
            answer = await upstream.post("/x", {})
            while not (await answer.readany()).endswith(b'"'):
                pass
            first = asyncio.ensure_future(answer.readany())
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="somebody else"):
                await answer.readany()
            first.cancel()
            second = asyncio.ensure_future(answer.readany())
            await asyncio.wait([first])
            answer.close()
            with pytest.raises(ConnectionError, match="closed here"):
                await second

    run(scenario())


def test_closing_while_a_connection_is_made_sends_nothing() -> None:
    async def scenario() -> None:
        async with saying(SIZED) as (upstream, asked):
            asking = asyncio.ensure_future(upstream.post("/x", {}))
            await asyncio.sleep(0)
            await upstream.__aexit__()
            with pytest.raises(EngineUnavailable, match="not open"):
                await asking
            with pytest.raises(EngineUnavailable, match="not open"):
                await upstream.post("/x", {})
            assert not asked

    run(scenario())


def test_closing_is_told_to_whoever_waits_for_the_head() -> None:
    async def scenario() -> None:
        async with saying(stay=True) as (upstream, asked):
            asking = asyncio.ensure_future(upstream.post("/x", {}))
            await until(lambda: asked)
            await upstream.__aexit__()
            with pytest.raises(EngineUnavailable, match="engine was closed"):
                await asking

    run(scenario())


def test_an_answer_of_nothing_is_no_answer() -> None:
    with pytest.raises(EngineProtocol, match="204"):
        run(fetched(b"HTTP/1.1 204 No Content\r\n\r\n"))
