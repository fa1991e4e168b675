"""The tools of destruction: the cutter cuts what it counts, the plain client hides nothing, a process that dies by
itself has fallen."""

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from aiohttp import web

from chaos.cutter import Cutter
from chaos.event_source import EventSource, Refused, start
from chaos.process import Process, environment, free_port
from harness import run_async, until


@asynccontextmanager
async def serving(*answers: bytes | int) -> AsyncIterator[tuple[int, list[web.Request]]]:
    """A server that gives one answer per request, in order: a stream's bytes, or a status. Its port, what it was
    asked."""
    left, asked = iter(answers), list[web.Request]()

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request)
        wanted = next(left, 204)
        if isinstance(wanted, int):
            return web.Response(status=wanted)
        return web.Response(body=wanted, content_type="text/event-stream")

    app = web.Application()
    app.router.add_route("*", "/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield port, asked
    finally:
        await runner.cleanup()


async def shown(port: int) -> list[str]:
    async with aiohttp.ClientSession() as http:
        return [event.id async for event in EventSource(http, f"http://127.0.0.1:{port}/").events()]


def block(seq: int) -> bytes:
    return b"id: %d\nevent: text.delta\ndata: {}\n\n" % seq


def test_a_plain_event_source_comes_back_with_the_last_id_and_hides_nothing() -> None:
    async def scenario() -> None:
        broken = b"retry: 1\n\n" + block(1) + block(2) + block(3)[:-5]
        async with serving(broken, 502, b": hb\n" + block(2) + block(5)) as (port, asked):
            assert await shown(port) == ["1", "2", "2", "5"]
            assert [request.headers.get("Last-Event-ID") for request in asked] == [None, "2", "2", "5"]

    run_async(scenario())


def test_a_plain_event_source_gives_up_on_an_answer_that_no_coming_back_mends() -> None:
    async def scenario() -> Sequence[str] | Exception:
        async with serving(400) as (port, _):
            try:
                return await shown(port)
            except Refused as refused:
                return refused

    assert isinstance(run_async(scenario()), Refused)


def test_a_start_is_asked_again_with_the_same_key() -> None:
    async def scenario() -> None:
        async with serving(503, b'{"run_id":"r1"}') as (port, asked), aiohttp.ClientSession() as http:
            assert await start(http, f"http://127.0.0.1:{port}/", b"{}", "key-1") == {"run_id": "r1"}
            assert [request.headers["Idempotency-Key"] for request in asked] == ["key-1", "key-1"]

    run_async(scenario())


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Cutter, asyncio.StreamWriter, asyncio.StreamReader]]:
    """A cutter with one connection through it: where the server writes, where the client reads."""
    accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.put_nowait(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    async with server, Cutter(server.sockets[0].getsockname()[1]) as cutter:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(cutter.url.rpartition(":")[2]))
        upstream = await accepted.get()
        try:
            yield cutter, upstream, reader
        finally:
            writer.close()
            upstream.close()


def test_a_cut_at_a_byte_lets_exactly_the_bytes_before_it_through() -> None:
    async def scenario() -> None:
        async with connected() as (cutter, upstream, reader):
            (link,) = cutter.links
            link.arm(5, rudely=False)
            upstream.write(b"abc")
            assert await reader.readexactly(3) == b"abc"
            assert cutter.cuts == 0
            upstream.write(b"defgh")
            assert await reader.read() == b"de"
            assert cutter.cuts == 1
            assert not cutter.links

    run_async(scenario())


def test_a_rude_cut_is_a_reset() -> None:
    async def scenario() -> None:
        async with connected() as (cutter, _, reader):
            (link,) = cutter.links
            link.arm(0, rudely=True)
            try:
                assert not await reader.read()
                raise AssertionError("the connection was closed politely")
            except ConnectionResetError:
                assert cutter.cuts == 1

    run_async(scenario())


def test_a_connection_that_closed_by_itself_is_not_counted_as_cut() -> None:
    async def scenario() -> None:
        async with connected() as (cutter, upstream, reader):
            (link,) = cutter.links
            link.arm(100, rudely=False)
            upstream.write(b"abc")
            upstream.close()
            assert await reader.read() == b"abc"
            await until(lambda: not cutter.links)
            assert cutter.cuts == 0
            assert not cutter.cut_one(random.Random(1))

    run_async(scenario())


def process(folder: Path, code: str) -> Process:
    """A Python process; `listen()` in it makes it come up."""
    port = free_port()
    listen = f"listen = lambda: socket.create_server(('127.0.0.1', {port}))"
    command = [sys.executable, "-c", f"import pathlib, socket, sys, time\n{listen}\n{code}"]
    return Process("victim", "instance", command, port=port, folder=folder, env=environment())


def test_a_killed_process_comes_back_as_another_and_has_not_fallen(tmp_path: Path) -> None:
    async def scenario() -> None:
        victim = process(tmp_path, "s = listen(); time.sleep(60)")
        await victim.start()
        first = victim.pid
        await victim.kill()
        victim.look()
        await victim.start()
        assert victim.pid != first
        assert victim.falls == []
        await victim.kill()

    run_async(scenario())


def test_a_process_that_ends_by_itself_has_fallen(tmp_path: Path) -> None:
    async def scenario() -> None:
        victim = process(tmp_path, "s = listen(); s.accept(); sys.exit(3)")
        await victim.start()
        await until(lambda: not victim.running)
        victim.look()
        victim.look()
        (fall,) = victim.falls
        assert "ended by itself (3)" in fall

    run_async(scenario())


def test_a_process_that_ends_while_it_starts_is_started_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        first_time = "p = pathlib.Path('tried')\nif not p.exists(): p.touch(); sys.exit(1)\n"
        victim = process(tmp_path, f"{first_time}s = listen(); time.sleep(60)")
        await victim.start()
        assert (tmp_path / "tried").exists()
        assert victim.falls == []
        await victim.kill()

    run_async(scenario())
