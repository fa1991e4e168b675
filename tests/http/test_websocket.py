import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest

from faulty_log import FaultyLog
from harness import run_async, until
from headrace.agent.port import RunContext
from headrace.config import AuthConfig
from headrace.errors import LogCorrupt
from headrace.events import RunFinished, TextDelta
from serving import Caller, FunctionAgent, Gate, config, count, running

COUNT = FunctionAgent(count)
PROTOCOL = "headrace.v1.json"


class Client:
    """Frames in and out, as a client sees them."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.messages = 0
        self._frames: list[dict[str, Any]] = []

    async def send(self, *frames: dict[str, Any]) -> None:
        await self.socket.send_str("\n".join(msgspec.json.encode(frame).decode() for frame in frames))

    async def next(self) -> dict[str, Any]:
        while not self._frames:
            message = await self.socket.receive(timeout=10)
            assert message.type is aiohttp.WSMsgType.TEXT, message
            self.messages += 1
            self._frames = [msgspec.json.decode(line) for line in message.data.split("\n")]
        return self._frames.pop(0)

    async def until(self, **wanted: Any) -> list[dict[str, Any]]:
        """Every frame up to the first that has all of `wanted`."""
        seen: list[dict[str, Any]] = []
        while not seen or any(seen[-1].get(name) != value for name, value in wanted.items()):
            seen.append(await self.next())
        return seen


@asynccontextmanager
async def connected(caller: Caller, **headers: str) -> AsyncIterator[Client]:
    url = caller.server.url.replace("http", "ws") + "/ws"
    async with caller.http.ws_connect(url, protocols=[PROTOCOL], headers=headers) as socket:
        assert socket.protocol == PROTOCOL
        yield Client(socket)


def test_a_run_is_started_and_followed_to_its_end_on_one_socket() -> None:
    async def scenario() -> None:
        async with running(COUNT) as caller, connected(caller) as client:
            await client.send({"type": "start", "ref": 7, "run": {"input": "3"}})
            started = (await client.until(type="started"))[-1]
            assert started["ref"] == 7
            frames = await client.until(event="run.finished")
            assert {frame["run_id"] for frame in frames} == {started["run_id"]}
            assert "".join(f["data"].get("text", "") for f in frames) == "w0 w1 w2 "
            assert frames[0]["seq"] == 1

    run_async(scenario())


def test_the_runs_of_one_tick_share_a_message() -> None:
    async def scenario() -> None:
        barrier = asyncio.Barrier(20)

        async def together(context: RunContext) -> RunFinished:
            await barrier.wait()
            for word in range(10):
                context.emit(TextDelta(text=f"{word}"))
                await asyncio.sleep(0)
            return RunFinished(status="completed")

        async with running(FunctionAgent(together)) as caller, connected(caller) as client:
            await client.send(*({"type": "start", "run": {"input": "x"}} for _ in range(20)))
            ended = 0
            records = 0
            while ended < 20:
                frame = await client.next()
                records += frame["type"] == "record"
                ended += frame.get("event") == "run.finished"
            assert client.messages < records / 4

    run_async(scenario())


def test_a_socket_resumes_exactly_after_a_seq() -> None:
    async def scenario() -> None:
        async with running(COUNT) as caller, connected(caller) as client:
            state = await caller.finished("10")
            await client.send({"type": "follow", "run_id": state["run_id"], "after": 5, "chunk": "token"})
            assert (await client.next())["type"] == "following"
            frames = await client.until(event="run.finished")
            assert [frame["seq"] for frame in frames] == list(range(6, 15))
            await client.send({"type": "follow", "run_id": state["run_id"], "after": state["seq"]})
            assert (await client.next())["type"] == "ended"

    run_async(scenario())


def test_cancel_steer_and_ping_work_over_the_socket_and_unfollow_ends_the_records() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with running(FunctionAgent(gate)) as caller, connected(caller) as client:
            run_id = await caller.start("x")
            await gate.entered.wait()
            await client.send({"type": "follow", "run_id": run_id}, {"type": "ping", "ref": "p"})
            assert (await client.until(type="pong"))[-1]["ref"] == "p"
            await client.send({"type": "steer", "run_id": run_id, "text": "shorter", "ref": 1})
            frames = await client.until(type="accepted", ref=1)
            assert frames[-1]["steer_id"]
            await client.send({"type": "unfollow", "run_id": run_id}, {"type": "cancel", "run_id": run_id, "ref": 2})
            await client.until(type="accepted", ref=2)
            await until(lambda: gate.cancelled)
            await client.send({"type": "ping", "ref": "last"})
            assert all(f.get("event") != "run.finished" for f in await client.until(type="pong", ref="last"))

    run_async(scenario())


def test_a_steer_with_a_key_is_received_once() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with running(FunctionAgent(gate)) as caller, connected(caller) as client:
            run_id = await caller.start("x")
            steer = {"type": "steer", "run_id": run_id, "text": "shorter", "key": "k"}
            await client.send(steer, steer, {**steer, "text": "longer"})
            first, again, other = [await client.next() for _ in range(3)]
            assert (first["type"], first["steer_id"]) == ("accepted", again["steer_id"])
            assert (other["type"], other["code"], other["run_id"]) == ("error", "idempotency_conflict", run_id)
            _, over_http = await caller.post(f"/v1/runs/{run_id}/steer", {"text": "shorter"}, idempotency_key="k")
            assert over_http["steer_id"] == first["steer_id"]
            assert len((await caller.server.log.state(run_id)).steers) == 1

    run_async(scenario())


def test_types_show_only_these_and_the_end_and_an_unknown_one_is_refused() -> None:
    async def scenario() -> None:
        async with running(COUNT) as caller, connected(caller) as client:
            state = await caller.finished("10")
            follow = {"type": "follow", "run_id": state["run_id"]}
            await client.send({**follow, "types": ["turn.started"]})
            frames = await client.until(event="run.finished")
            assert [frame.get("event") for frame in frames[1:]] == ["turn.started", "run.finished"]
            await client.send({**follow, "types": []})
            assert "text.delta" in [frame.get("event") for frame in await client.until(event="run.finished")]
            await client.send({**follow, "types": ["nonsense"], "ref": 9})
            error = await client.next()
            assert (error["code"], error["ref"], error["run_id"]) == ("invalid_request", 9, state["run_id"])

    run_async(scenario())


def test_the_handshake_says_how_often_the_server_beats() -> None:
    async def scenario() -> None:
        async with running(COUNT, settings=config(server={"heartbeat": 0.25})) as caller:
            url = caller.server.url + "/ws"
            upgrade = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
            upgrade["sec-websocket-key"] = "dGhlIHNhbXBsZSBub25jZQ=="
            async with caller.http.get(url, headers=upgrade) as answer:
                assert (answer.status, answer.headers["x-heartbeat-interval"]) == (101, "0.25")
                answer.close()

    run_async(scenario())


def test_a_run_that_cannot_be_read_is_named_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    log = FaultyLog()
    monkeypatch.setattr("headrace.server.open_log", lambda config: log)

    async def scenario() -> None:
        async with running(COUNT) as caller, connected(caller) as client:
            broken, well = await caller.finished("3"), await caller.finished("3")
            log.break_run(broken["run_id"], LogCorrupt("Record 2 cannot be read."))
            await client.send({"type": "follow", "run_id": broken["run_id"]})
            error = (await client.until(type="error"))[-1]
            assert (error["run_id"], error["code"], error["retry"]) == (broken["run_id"], "log_corrupt", False)
            await client.send({"type": "follow", "run_id": well["run_id"]})
            frames = await client.until(event="run.finished")
            assert {frame["run_id"] for frame in frames} == {well["run_id"]}

    run_async(scenario())


def test_a_socket_that_follows_enough_runs_starts_and_promises_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.http.websocket.MAX_FOLLOWED", 1)

    async def scenario() -> None:
        gate = Gate()
        async with running(FunctionAgent(gate)) as caller, connected(caller) as client:
            first, second = await caller.start("x"), await caller.start("x")
            await client.send({"type": "follow", "run_id": first})
            await client.until(event="text.delta")
            await client.send({"type": "follow", "run_id": second, "ref": 1}, {"type": "start", "run": {"input": "x"}})
            assert [(await client.next())["code"] for _ in range(2)] == ["invalid_request"] * 2
            assert len((await caller.get("/v1/runs"))[1]["runs"]) == 2
            await client.send({"type": "follow", "run_id": first, "ref": 2})
            assert (await client.next())["type"] == "following"

    run_async(scenario())


GARBAGE = [
    "{",
    "[]",
    '{"type":"nonsense"}',
    '{"type":"follow"}',
    '{"type":"follow","run_id":"x","after":-1}',
    '{"type":"follow","run_id":5}',
    '{"type":"start","run":{"input":5}}',
    '{"type":"start","run":{"input":"\\ud800"}}',
    '{"type":"cancel","run_id":"nobody"}',
    '{"type":"ping","ref":{"a":1}}',
    '{"type":"steer","run_id":"x","text":"y","key":""}',
    '{"type":"follow","run_id":"x","types":"text.delta"}',
    "[" * 100_000,
]


@pytest.mark.parametrize("text", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_is_answered_with_an_error_and_the_socket_lives_on(text: str) -> None:
    async def scenario() -> None:
        async with running(COUNT) as caller, connected(caller) as client:
            await client.socket.send_str(text)
            error = await client.next()
            assert error["type"] == "error"
            assert error["code"] in ("invalid_request", "unknown_run")
            assert error["message"]
            await client.socket.send_bytes(b"\x00")
            assert (await client.next())["type"] == "error"
            await client.send({"type": "ping"})
            assert (await client.next())["type"] == "pong"

    run_async(scenario())


def test_a_socket_without_a_key_or_with_an_unknown_subprotocol_is_refused_for_good() -> None:
    async def scenario() -> None:
        settings = config(auth=AuthConfig(keys={"ann": "key-a", "bob": "key-b"}))
        async with running(COUNT, settings=settings) as caller:
            url = caller.server.url.replace("http", "ws") + "/ws"
            with pytest.raises(aiohttp.WSServerHandshakeError):
                await caller.http.ws_connect(url, protocols=[PROTOCOL])
            with pytest.raises(aiohttp.WSServerHandshakeError):
                await caller.http.ws_connect(url, protocols=["other"], headers={"authorization": "Bearer key-a"})

    run_async(scenario())


def test_another_tenants_run_cannot_be_followed_on_a_socket() -> None:
    async def scenario() -> None:
        settings = config(auth=AuthConfig(keys={"ann": "key-a", "bob": "key-b"}))
        async with running(COUNT, settings=settings) as caller:
            _, run = await caller.post("/v1/runs", {"input": "1"}, authorization="Bearer key-a")
            async with connected(caller, authorization="Bearer key-b") as client:
                for command in ({"type": "follow"}, {"type": "cancel"}, {"type": "steer", "text": "x"}):
                    await client.send({**command, "run_id": run["run_id"]})
                    assert (await client.next())["code"] == "unknown_run"

    run_async(scenario())


def test_a_draining_server_says_so_and_closes_with_a_code_that_means_come_back() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with running(FunctionAgent(gate), settings=config(server={"drain_grace": 0.05})) as caller:
            run_id = await caller.start("x")
            async with connected(caller) as client:
                await client.send({"type": "follow", "run_id": run_id})
                await client.until(event="text.delta")
                await caller.server.drain()
                await client.until(type="going_away")
                message = await client.socket.receive(timeout=5)
                assert message.type is aiohttp.WSMsgType.CLOSE
                assert message.data == 4001

    run_async(scenario())


def test_a_client_that_stops_reading_costs_its_cursor_and_disturbs_nobody() -> None:
    async def scenario() -> None:
        async with running(COUNT) as caller, connected(caller) as slow, connected(caller) as quick:
            state = await caller.finished("20000")
            for client in (slow, quick):
                await client.send({"type": "follow", "run_id": state["run_id"], "chunk": "token"})
            frames = await quick.until(event="run.finished")
            assert len([f for f in frames if f["type"] == "record"]) == state["seq"]
            late = await slow.until(event="run.finished")  # it has read nothing so far
            assert [f["seq"] for f in late if f["type"] == "record"] == list(range(1, state["seq"] + 1))

    run_async(scenario(), deadline=60)
