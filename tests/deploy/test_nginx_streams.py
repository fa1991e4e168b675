"""Streams through the nginx of deploy/: as they come, over HTTP/1.1, HTTP/2 and WebSocket, for as long as they live."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import msgspec
import pytest

from harness import run_async, until
from headrace.client import AsyncClient
from headrace.config import Config
from nginx import Nginx
from serving import Caller, FunctionAgent, Gate, config, count, parse, read_until, running

COUNT = FunctionAgent(count)
SHORT = {"proxy_read_timeout 40s;": "proxy_read_timeout 600ms;"}
BEATS = 15
"""At least one and a half seconds of them, with the 0.2 s of a test's configuration."""


class Front(Caller):
    """Calls through nginx."""

    def __init__(self, nginx: Nginx, http: aiohttp.ClientSession) -> None:
        super().__init__(nginx, http)  # type: ignore[arg-type]  # all it needs of a server is its address
        self.nginx = nginx


@contextlib.asynccontextmanager
async def in_front(
    folder: Path, *agents: Any, settings: Config | None = None, changes: dict[str, str] | None = None
) -> AsyncIterator[Front]:
    """One instance with these agents, and nginx before it."""
    async with (
        running(*agents, settings=settings) as instance,
        Nginx(folder, [instance.server.port], changes) as nginx,
    ):
        yield Front(nginx, instance.http)


def test_a_token_comes_through_before_the_next_one_is_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        gate = Gate()
        async with in_front(tmp_path, FunctionAgent(gate)) as front:
            headers = {"accept": "text/event-stream", "accept-encoding": "gzip"}
            async with front.http.post(f"{front.nginx.url}/v1/runs", json={"input": "x"}, headers=headers) as answer:
                assert answer.headers["location"] == f"/v1/runs/{answer.headers['x-run-id']}"
                assert "content-encoding" not in answer.headers
                raw = await read_until(answer, b"before ")
                assert not gate.open.is_set()
                gate.open.set()
                events = parse(raw + await answer.read())
            assert [e["event"] for e in events] == ["run.started", "text.delta", "text.delta", "run.finished"]

    run_async(scenario())


def test_a_client_resumes_through_nginx_after_the_record_it_has(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with in_front(tmp_path, COUNT) as front:
            run_id = await front.start("5")
            path = f"/v1/runs/{run_id}/events?chunk=token"
            whole = await front.events(path)
            assert await front.events(path, last_event_id="3") == whole[3:]

    run_async(scenario())


def test_a_browser_s_tabs_share_one_http_2_connection_and_each_stream_flows(tmp_path: Path) -> None:
    async def scenario() -> None:
        gate = Gate()
        async with (
            in_front(tmp_path, FunctionAgent(gate)) as front,
            httpx.AsyncClient(http1=False, http2=True, verify=front.nginx.trust) as browser,
        ):
            run_id = await front.start("x")
            url = f"{front.nginx.tls_url}/v1/runs/{run_id}/events"
            async with contextlib.AsyncExitStack() as stack:
                tabs = [await stack.enter_async_context(browser.stream("GET", url)) for _ in range(10)]
                assert {tab.http_version for tab in tabs} == {"HTTP/2"}
                readers = [tab.aiter_raw() for tab in tabs]
                for reader in readers:
                    await _until(reader, b"before ")
                gate.open.set()
                for reader in readers:
                    await _until(reader, b"run.finished")

    run_async(scenario())


async def _until(reader: AsyncIterator[bytes], marker: bytes) -> None:
    raw = b""
    while marker not in raw:
        raw += await anext(reader)


def test_a_websocket_runs_through_tls(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with in_front(tmp_path, COUNT) as front:
            url = front.nginx.tls_url.replace("https", "wss") + "/ws"
            async with front.http.ws_connect(url, protocols=["headrace.v1.json"], ssl=front.nginx.trust) as socket:
                assert socket.protocol == "headrace.v1.json"
                await socket.send_json({"type": "start", "run": {"input": "3"}})
                frames: list[dict[str, Any]] = []
                while not frames or frames[-1].get("event") != "run.finished":
                    text = await socket.receive_str()
                    frames += [msgspec.json.decode(line) for line in text.split("\n")]
            assert "".join(f["data"].get("text", "") for f in frames if f["type"] == "record") == "w0 w1 w2 "

    run_async(scenario())


@pytest.mark.parametrize("heartbeat", [0.2, 30.0])
def test_heartbeats_alone_keep_a_quiet_stream_open(tmp_path: Path, heartbeat: float) -> None:
    """With nginx's patience cut to 0.6 s: with a heartbeat the stream outlives it, without one it is cut."""

    async def scenario() -> None:
        gate = Gate()
        settings = config(server={"heartbeat": heartbeat})
        async with in_front(tmp_path, FunctionAgent(gate), settings=settings, changes=SHORT) as front:
            run_id = await front.start("x")
            async with front.stream(f"/v1/runs/{run_id}/events") as answer:
                raw = await read_until(answer, b"before ")
                if heartbeat > 1:
                    with contextlib.suppress(aiohttp.ClientPayloadError):  # not a clean end: it was cut
                        raw += await answer.read()
                    assert b"run.finished" not in raw
                    return
                while raw.count(b": hb\n") < BEATS:
                    raw += await answer.content.readany()
                gate.open.set()
                raw += await answer.read()
                assert parse(raw)[-1]["event"] == "run.finished"

    run_async(scenario())


def test_a_websocket_that_says_nothing_is_kept_open_by_pongs(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            in_front(tmp_path, COUNT, changes=SHORT) as front,
            front.http.ws_connect(f"{front.nginx.url}/ws") as socket,
        ):
            for _ in range(BEATS):
                assert (await socket.receive_json(timeout=10))["type"] == "pong"

    run_async(scenario())


def test_a_client_that_leaves_is_noticed_behind_nginx(tmp_path: Path) -> None:
    """A foreground completion stops when its client goes: nginx has to pass that on."""

    async def scenario() -> None:
        gate = Gate()
        async with in_front(tmp_path, FunctionAgent(gate)) as front:
            body = {"model": "agent", "stream": True, "messages": [{"role": "user", "content": "x"}]}
            async with front.http.post(f"{front.nginx.url}/v1/chat/completions", json=body) as answer:
                await read_until(answer, b"before ")
                answer.close()
            await until(lambda: gate.cancelled)

    run_async(scenario())


def test_our_client_and_its_socket_do_not_notice_nginx(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with in_front(tmp_path, COUNT) as front, AsyncClient(front.nginx.url) as client:
            run = await client.start("20")
            async for _ in run.events():
                pass
            async with client.connect() as socket:
                followed = await socket.follow(run.id)
                async for _ in followed.events():
                    pass
            assert followed.state == run.state
            assert run.state.output == "".join(f"w{i} " for i in range(20))

    run_async(scenario())


def test_the_page_comes_compressed_and_plain_http_is_sent_to_https(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with in_front(tmp_path, COUNT) as front:
            async with front.http.get(f"{front.nginx.url}/") as answer:
                page = await answer.text()
            script = re.search(r"/assets/[\w.-]+\.js", page)
            assert script is not None
            async with front.http.get(front.nginx.url + script[0], headers={"accept-encoding": "gzip"}) as answer:
                assert answer.headers["content-encoding"] == "gzip"
                assert len(await answer.read()) > 10_000
            async with front.http.get(f"{front.nginx.redirect_url}/v1/agents", allow_redirects=False) as answer:
                assert (answer.status, answer.headers["location"]) == (308, "https://127.0.0.1/v1/agents")
            async with front.http.get(front.nginx.status_url) as answer:
                assert "Active connections" in await answer.text()

    run_async(scenario())


def test_streams_wait_for_nobody_when_nginx_is_told_of_other_instances(tmp_path: Path) -> None:
    """A reload starts new workers; a stream of the old ones goes on to its end."""

    async def scenario() -> None:
        gate = Gate()
        async with running(COUNT) as other, in_front(tmp_path, FunctionAgent(gate)) as front:
            run_id = await front.start("x")
            async with front.stream(f"/v1/runs/{run_id}/events") as answer:
                await read_until(answer, b"before ")
                front.nginx.reload([other.server.port])
                while (await front.get(f"/v1/runs/{run_id}"))[0] != 404:  # noqa: ASYNC110  (the other does not know it)
                    await asyncio.sleep(0.01)
                gate.open.set()
                assert b"run.finished" in await answer.read()

    run_async(scenario())
