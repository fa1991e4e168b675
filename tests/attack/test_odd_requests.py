"""Bytes that are no request, requests that never end, and clients that come and go: refused in words, and nothing is
left behind."""

import asyncio
import contextlib

import pytest

from harness import run_async, until
from headrace.http import serving
from headrace.http.serving import MAX_HEAD_BYTES, MAX_HEADERS
from serving import Caller, FunctionAgent, Gate, config, count, running

HOST = b"Host: x\r\n"
POST = b"POST /v1/runs HTTP/1.1\r\n" + HOST
UPGRADE = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


async def exchange(caller: Caller, sent: bytes) -> bytes:
    """What the server says until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", caller.server.port)
    heard = b""
    try:
        writer.write(sent)
        while piece := await reader.read(65536):
            heard += piece
    except ConnectionResetError:
        pass  # it closed while we were still sending
    finally:
        writer.close()
    return heard


def closing(head: bytes) -> bytes:
    return head + HOST + b"Connection: close\r\n\r\n"


REFUSED = {
    "noise": (b"\x16\x03\x01\x02\x00\x01garbage\r\n\r\n", 400),
    "a header too many": (b"GET /healthz HTTP/1.1\r\n" + b"X: y\r\n" * (MAX_HEADERS + 1) + b"\r\n", 431),
    "a megabyte of one header": (b"GET /healthz HTTP/1.1\r\nX: " + b"a" * 1_000_000 + b"\r\n\r\n", 431),
    "a head that never ends": (b"GET /healthz HTTP/1.1\r\nX: " + b"a" * (2 * MAX_HEAD_BYTES), 431),
    "a long query": (closing(b"GET /v1/runs?" + b"a=b&" * 16_380 + b" HTTP/1.1\r\n"), 431),
    "a socket with many headers": (b"GET /ws HTTP/1.1\r\n" + HOST + b"X: y\r\n" * 200 + UPGRADE, 431),
    "a NUL in the path": (closing(b"GET /v1/runs/a\0b HTTP/1.1\r\n"), 400),
    "a NUL in the path, quoted": (closing(b"GET /v1/runs/%00 HTTP/1.1\r\n"), 404),
    "half a character in the path": (closing(b"GET /v1/threads/%ed%a0%80 HTTP/1.1\r\n"), 404),
    "two lengths": (POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}", 400),
    "a negative length": (POST + b"Content-Length: -1\r\n\r\n{}", 400),
    "an endless length": (POST + b"Content-Length: 99999999999999999999999\r\n\r\n{}", 400),
    "a length and chunks": (POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "a chunk of no size": (POST + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n{}\r\n0\r\n\r\n", 400),
    "a way out of the page": (closing(b"GET /assets/..%2f..%2fserver.py HTTP/1.1\r\n"), 404),
    "a file of the machine": (closing(b"GET /../../etc/passwd HTTP/1.1\r\n"), 404),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_request_is_refused_and_the_next_one_is_answered(name: str) -> None:
    async def scenario() -> None:
        sent, status = REFUSED[name]
        async with running(FunctionAgent(count)) as caller:
            heard = await exchange(caller, sent)
            assert heard.startswith(b"HTTP/1.1 %d " % status), heard[:200]
            assert b"Traceback" not in heard
            assert (await caller.get("/healthz"))[0] == 200

    run_async(scenario())


@pytest.mark.parametrize("begun", [b"", b"GET /heal", POST + b"Content-Length: 50\r\n\r\n{"], ids=range(3))
def test_a_request_that_never_comes_whole_is_given_up(begun: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(serving, "REQUEST_PATIENCE_S", 0.1)
        async with running(FunctionAgent(count)) as caller:
            assert await exchange(caller, begun) == b""

    run_async(scenario())


def test_a_stream_outlives_the_patience_for_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(serving, "REQUEST_PATIENCE_S", 0.1)
        gate = Gate()
        async with running(FunctionAgent(gate)) as caller:
            run_id = await caller.start("x")
            path = f"/v1/runs/{run_id}/events"
            async with asyncio.TaskGroup() as group:
                following = group.create_task(caller.events(path))
                await asyncio.sleep(0.3)  # what is tested is that this time passes without consequence
                gate.open.set()
            assert following.result()[-1]["event"] == "run.finished"

    run_async(scenario())


def test_head_is_answered_where_a_browser_or_a_balancer_looks_and_405_names_what_is_allowed() -> None:
    async def scenario() -> None:
        async with running(FunctionAgent(count)) as caller:
            for path in (b"/", b"/healthz"):
                heard = await exchange(caller, closing(b"HEAD " + path + b" HTTP/1.1\r\n"))
                assert heard.startswith(b"HTTP/1.1 200 ")
                assert heard.endswith(b"\r\n\r\n")
            heard = await exchange(caller, closing(b"DELETE /v1/runs HTTP/1.1\r\n"))
            assert heard.startswith(b"HTTP/1.1 405 ")
            assert b"\r\nallow: GET, POST\r\n" in heard

    run_async(scenario())


async def comes_and_goes(caller: Caller, sent: bytes, read: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", caller.server.port)
    writer.write(sent)
    if read:
        await reader.readexactly(read)
    writer.transport.abort()


def test_clients_that_come_and_go_by_the_hundred_leave_nothing_and_disturb_nobody() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with running(FunctionAgent(gate), settings=config()) as caller:
            run_id = await caller.start("x")
            await gate.entered.wait()
            follow = closing(b"GET /v1/runs/%b/events HTTP/1.1\r\n" % run_id.encode())
            (live,) = caller.server.log._runs.values()  # type: ignore[attr-defined]
            tasks = len(asyncio.all_tasks())
            async with caller.stream(f"/v1/runs/{run_id}/events") as answer:
                for stage in (0, 1, 100, 300):
                    for _ in range(5):
                        async with asyncio.TaskGroup() as crowd:
                            for _ in range(25):
                                crowd.create_task(comes_and_goes(caller, follow, stage))
                await until(lambda: len(live.subscribers) == 1)
                await until(lambda: len(caller.server._pulse) == 1)
                await until(lambda: len(asyncio.all_tasks()) <= tasks + 2)
                gate.open.set()
                heard = await answer.read()
            assert heard.count(b"event: run.finished") == 1
            assert b"before " in heard
            assert b"after" in heard

    run_async(scenario())


def test_two_hundred_posts_with_one_key_are_one_run() -> None:
    async def scenario() -> None:
        async with running(FunctionAgent(count)) as caller:
            async with asyncio.TaskGroup() as crowd:
                asked = [
                    crowd.create_task(caller.post("/v1/runs", {"input": "3"}, idempotency_key="k")) for _ in range(200)
                ]
            assert {status for status, _ in (task.result() for task in asked)} == {202}
            assert len({run["run_id"] for _, run in (task.result() for task in asked)}) == 1
            assert len((await caller.get("/v1/runs"))[1]["runs"]) == 1

    run_async(scenario())


def test_a_client_that_pings_and_never_reads_is_read_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        made: list[serving.WebSocketConnection] = []
        connected = serving.WebSocketConnection.connection_made

        def remember(self: serving.WebSocketConnection, transport: asyncio.BaseTransport) -> None:
            made.append(self)
            connected(self, transport)

        monkeypatch.setattr(serving.WebSocketConnection, "connection_made", remember)
        async with running(FunctionAgent(count)) as caller:
            reader, writer = await asyncio.open_connection("127.0.0.1", caller.server.port, limit=1024)
            writer.write(b"GET /ws HTTP/1.1\r\n" + HOST + UPGRADE)
            assert b" 101 " in await reader.readline()
            writer.write((b"\x89\xe4" + bytes(4) + b"x" * 100) * 200_000)
            owed = [0]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2):
                    while owed[-1] < 2_000_000:
                        owed.append(made[0].transport.get_write_buffer_size())
                        await asyncio.sleep(0.01)
            assert 0 < max(owed) < 2_000_000
            assert (await caller.get("/healthz"))[0] == 200
            writer.transport.abort()

    run_async(scenario())
