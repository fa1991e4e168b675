"""The client against a real server, link whole."""

import asyncio
import threading
from contextlib import aclosing
from itertools import pairwise

import pytest

from client_server import Talker, logged, serving
from faulty_log import FaultyLog
from harness import run_async, until
from headrace.client import AsyncClient, Client, Snapshot
from headrace.config import AuthConfig
from headrace.errors import (
    ClientError,
    ConfigError,
    IdempotencyConflict,
    InputConflict,
    InvalidCursor,
    InvalidRequest,
    LogCorrupt,
    RunEnded,
    ServerUnreachable,
    Unauthorized,
    UnknownAgent,
    UnknownInput,
    UnknownRun,
    UnknownThread,
)
from headrace.events import Record, RunFinished, TextDelta
from headrace.log.memory import MemoryLog
from headrace.log.retention import Retention
from headrace.messages import Message
from headrace.state import fold, initial
from proxy import Proxy


def test_a_run_is_started_followed_and_folded_to_the_servers_own_state() -> None:
    async def scenario() -> None:
        async with serving(Talker()) as server, AsyncClient(server.url) as client:
            run = await client.start("hi")
            items = [item async for item in run.events(chunk="token")]
            assert items == await logged(server, run.id)
            assert run.state == await server.log.state(run.id)

    run_async(scenario())


def test_merged_deltas_give_the_same_text_and_state() -> None:
    async def scenario() -> None:
        async with serving(Talker([f"{n} " for n in range(300)])) as server, AsyncClient(server.url) as client:
            run = await client.start("hi")
            await run.result()
            items = [item async for item in run.events()]
            deltas = [i for i in items if isinstance(i, Record) and isinstance(i.event, TextDelta)]
            assert len(deltas) < 300
            assert "".join(i.event.text for i in deltas if isinstance(i.event, TextDelta)) == run.state.text
            assert run.state == await server.log.state(run.id)

    run_async(scenario())


def test_text_yields_what_was_said() -> None:
    async def scenario() -> None:
        talker = Talker()
        async with serving(talker) as server, AsyncClient(server.url) as client:
            run = await client.start("hi")
            assert "".join([str(piece) async for piece in run.text()]) == "".join(talker.words)

    run_async(scenario())


def test_events_after_a_seq_are_exactly_the_later_ones() -> None:
    async def scenario() -> None:
        async with serving(Talker()) as server, AsyncClient(server.url) as client:
            run = await client.start("hi")
            await run.result()
            whole = await logged(server, run.id)
            for after in range(len(whole) + 1):
                assert [item async for item in run.events(after, chunk="token")] == whole[after:]

    run_async(scenario())


def test_types_show_only_these_and_the_end() -> None:
    async def scenario() -> None:
        async with serving(Talker()) as server, AsyncClient(server.url) as client:
            run = await client.start("hi")
            items = [item async for item in run.events(types=["turn.started"])]
            kinds = [type(item.event).__name__ for item in items if isinstance(item, Record)]
            assert kinds == ["TurnStarted", "RunFinished"]

    run_async(scenario())


def test_the_result_of_a_run_followed_from_the_middle_is_whole() -> None:
    async def scenario() -> None:
        async with serving(Talker()) as server, AsyncClient(server.url) as client:
            run = await client.start("hi")
            async for _ in run.events(after=1):
                pass
            assert await run.result() == await server.log.state(run.id)

    run_async(scenario())


def test_the_same_key_is_the_same_run_and_another_body_is_refused() -> None:
    async def scenario() -> None:
        talker = Talker()
        async with serving(talker) as server, AsyncClient(server.url) as client:
            first = await client.start("hi", idempotency_key="k")
            again = await client.start("hi", idempotency_key="k")
            assert first.id == again.id
            with pytest.raises(IdempotencyConflict):
                await client.start("something else", idempotency_key="k")
            await first.result()
            assert talker.runs == 1

    run_async(scenario())


def test_a_run_can_be_cancelled_and_says_so_at_its_end() -> None:
    async def scenario() -> None:
        talker = Talker()
        talker.gate.clear()
        async with serving(talker) as server, AsyncClient(server.url) as client:
            run = await client.start("hi")
            assert (await run.cancel("enough")).cancel_requested
            assert (await run.result()).status == "cancelled"
            assert (await run.cancel()).status == "cancelled"

    run_async(scenario())


def test_a_question_is_answered_once_and_the_run_goes_on() -> None:
    async def scenario() -> None:
        async with serving(Talker()) as server, AsyncClient(server.url) as client:
            run = await client.start("ask me")
            async with aclosing(run.events(types=["input.requested"])) as items:
                await anext(items)
            with pytest.raises(UnknownInput):
                await run.answer("other", 1)
            await run.answer("q", "blue")
            assert (await run.result()).text.startswith("blue!Hello")
            with pytest.raises((InputConflict, RunEnded)):
                await run.answer("q", "red")

    run_async(scenario())


def test_a_steer_reaches_a_run_in_flight_and_is_refused_after_its_end() -> None:
    async def scenario() -> None:
        talker = Talker()
        talker.gate.clear()
        async with serving(talker) as server, AsyncClient(server.url) as client:
            run = await client.start("hi")
            steer_id = await run.steer("shorter", "interrupt")
            talker.gate.set()
            steers = (await run.result()).steers
            assert [(s.steer_id, s.text, s.mode) for s in steers] == [(steer_id, "shorter", "interrupt")]
            with pytest.raises(RunEnded):
                await run.steer("too late")

    run_async(scenario())


def test_threads_runs_and_agents_are_listed() -> None:
    async def scenario() -> None:
        async with serving(Talker()) as server, AsyncClient(server.url) as client:
            first = await client.start("first", thread_id="t1")
            await first.result()
            second = await client.start([Message(role="user", content="second")], "talker", "t1")
            await second.result()
            thread = await client.thread("t1")
            assert [m.content for m in thread.messages if m.role == "user"] == ["first", "second"]
            assert [row.run_id for row in thread.runs] == [first.id, second.id]
            assert [row.run_id for row in await client.runs()] == [second.id, first.id]
            assert [row.run_id for row in await client.runs(before=second.id)] == [first.id]
            assert [agent.name for agent in await client.agents()] == ["talker"]

    run_async(scenario())


def test_refusals_are_the_servers_own_errors() -> None:
    async def scenario() -> None:
        async with serving(Talker()) as server, AsyncClient(server.url) as client:
            with pytest.raises(UnknownAgent) as unknown:
                await client.start("hi", agent="nobody")
            assert unknown.value.hint is not None
            assert "talker" in unknown.value.hint
            with pytest.raises(InvalidRequest):
                await client.start("  ")
            for odd in ("nothing", "a b", "ü", "%2F"):
                with pytest.raises(UnknownRun):
                    await client.run(odd).refresh()
            with pytest.raises(UnknownRun):
                await anext(client.run("nothing").events())
            with pytest.raises(UnknownThread):
                await client.thread("nothing")
            run = await client.start("hi")
            await run.result()
            with pytest.raises(InvalidCursor):
                await anext(run.events(after=99))

    run_async(scenario())


def test_a_key_is_needed_where_the_server_has_keys() -> None:
    async def scenario() -> None:
        async with serving(Talker(), auth=AuthConfig(keys={"alice": "secret"})) as server:
            async with AsyncClient(server.url) as stranger:
                with pytest.raises(Unauthorized):
                    await stranger.start("hi")
                async with stranger.connect() as socket:
                    with pytest.raises(Unauthorized):
                        await socket.start("hi")
            async with AsyncClient(server.url, "secret") as alice:
                run = await alice.start("hi")
                assert (await run.result()).status == "completed"
                async with alice.connect() as socket:
                    assert (await (await socket.start("hi")).result()).status == "completed"

    run_async(scenario())


def test_a_server_that_is_not_there_is_given_up_after_the_patience() -> None:
    async def scenario() -> None:
        async with serving(Talker()) as server:
            url = server.url
        async with AsyncClient(url, patience=0) as client:
            with pytest.raises(ServerUnreachable):
                await client.start("hi")
            with pytest.raises(ServerUnreachable):
                await anext(client.run("x").events())
            async with client.connect() as socket:
                with pytest.raises(ServerUnreachable):
                    await socket.start("hi")

    run_async(scenario())


@pytest.mark.parametrize("address", ["127.0.0.1:8321", "ftp://x", "http://"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    async def scenario() -> None:
        async with AsyncClient(address) as client:
            await client.runs()

    with pytest.raises(ConfigError):
        run_async(scenario())


def test_one_socket_follows_many_runs_and_keeps_them_apart() -> None:
    async def scenario() -> None:
        talker = Talker([f"{n} " for n in range(50)])
        async with serving(talker) as server, AsyncClient(server.url) as client, client.connect() as socket:
            followed = [await socket.start(f"question {n}", chunk="token") for n in range(20)]
            for run in followed:
                items = [item async for item in run.events()]
                assert items == await logged(server, run.id)
                assert run.state == await server.log.state(run.id)

    run_async(scenario())


def test_over_the_socket_runs_are_cancelled_steered_answered_and_left() -> None:
    async def scenario() -> None:
        talker = Talker()
        talker.gate.clear()
        async with serving(talker) as server, AsyncClient(server.url) as client, client.connect() as socket:
            cancelled = await socket.start("hi")
            left = await socket.start("hi")
            asked = await socket.start("ask me")
            await left.unfollow()
            await cancelled.cancel("enough")
            assert (await cancelled.result()).status == "cancelled"
            steer_id = await asked.steer("shorter")
            talker.gate.set()
            await until(lambda: asked.state.inputs)
            with pytest.raises(UnknownInput):
                await asked.answer("other", 1)
            await asked.answer("q", "blue")
            state = await asked.result()
            assert (state.text[:5], state.steers[0].steer_id) == ("blue!", steer_id)
            assert [item async for item in left.events()] == []
            with pytest.raises(UnknownRun):
                await (await socket.follow("nothing")).result()
            ended = await socket.follow(asked.id, after=state.seq)
            assert [item async for item in ended.events()] == []

    run_async(scenario())


def test_over_the_socket_types_show_only_these_and_the_end() -> None:
    async def scenario() -> None:
        async with serving(Talker()) as server, AsyncClient(server.url) as client, client.connect() as socket:
            run = await socket.start("hi", types=["turn.started"])
            kinds = [type(item.event).__name__ async for item in run.events() if isinstance(item, Record)]
            assert kinds == ["TurnStarted", "RunFinished"]
            with pytest.raises(InvalidRequest):
                await (await socket.follow(run.id, types=["nonsense"])).result()

    run_async(scenario())


def test_a_run_that_cannot_be_read_for_a_while_is_followed_again_and_disturbs_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = FaultyLog()
    monkeypatch.setattr("headrace.server.open_log", lambda config: log)

    async def scenario() -> None:
        talker = Talker()
        async with serving(talker) as server, Proxy(server.port) as proxy, AsyncClient(proxy.url) as client:
            run = await client.start("hi")
            await run.result()
            log.break_run(run.id)
            async with client.connect() as socket:
                broken = await socket.follow(run.id, chunk="token")
                reading = asyncio.ensure_future(anext(aiter(broken.events())))
                await until(lambda: log.refused >= 2)
                links = len(proxy.links)
                assert (await (await socket.start("hi")).result()).status == "completed"
                log.faults.clear()
                assert await reading == (await logged(server, run.id))[0]
                assert (await broken.result()).status == "completed"
                log.break_run(run.id, LogCorrupt("Record 2 cannot be read."))
                with pytest.raises(LogCorrupt):
                    await (await socket.follow(run.id)).result()
                assert len(proxy.links) == links

    run_async(scenario())


def test_a_run_that_stays_unreadable_is_given_up_after_the_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    log = FaultyLog()
    monkeypatch.setattr("headrace.server.open_log", lambda config: log)

    async def scenario() -> None:
        async with serving(Talker()) as server, AsyncClient(server.url, patience=0) as client:
            run = await client.start("hi")
            await run.result()
            log.break_run(run.id)
            async with client.connect() as socket:
                with pytest.raises(ServerUnreachable, match="disk"):
                    await (await socket.follow(run.id)).result()

    run_async(scenario())


def test_a_slow_reader_of_the_socket_is_paused_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.client.followed.HELD_ITEMS", 8)

    async def scenario() -> None:
        talker = Talker([f"{n} " for n in range(200)])
        async with serving(talker) as server, AsyncClient(server.url) as client, client.connect() as socket:
            slow = await socket.start("hi", chunk="token")
            other = await socket.start("hi", chunk="token")
            assert len([item async for item in other.events()]) == len(await logged(server, other.id))
            most = 0
            items = []
            async for item in slow.events():
                most = max(most, len(slow._items))
                items.append(item)
            assert items == await logged(server, slow.id)
            assert most < 200

    run_async(scenario())


def test_the_client_works_without_await_in_threads_and_inside_a_running_loop() -> None:
    async def scenario() -> None:
        talker = Talker()
        async with serving(talker) as server:
            texts: list[str] = []

            def script() -> None:
                with Client(server.url) as client:
                    run = client.start("hi")
                    texts.append("".join(str(piece) for piece in run.text()))
                    assert run.result().status == "completed"
                    assert run.state.ended
                    seqs = [i.seq for i in run.events() if isinstance(i, Record)]
                    assert all(b > a for a, b in pairwise(seqs))
                    assert client.run(run.id).refresh() == run.state
                    assert run.id in [row.run_id for row in client.runs()]
                    assert client.thread(run.state.thread_id).runs[0].run_id == run.id
                    assert client.agents()[0].name == "talker"

            threads = [threading.Thread(target=script) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                await asyncio.to_thread(thread.join)
            assert texts == ["".join(talker.words)] * 4

    run_async(scenario())


def test_leaving_a_loop_early_closes_the_stream_and_the_client_goes_on() -> None:
    async def scenario() -> None:
        async with serving(Talker()) as server:

            def script() -> str:
                with Client(server.url) as client:
                    run = client.start("hi")
                    for _ in run.events():
                        break
                    return run.result().status

            assert await asyncio.to_thread(script) == "completed"

    run_async(scenario())


def test_a_closed_client_says_so() -> None:
    client = Client("http://127.0.0.1:1")
    client.close()
    client.close()
    with pytest.raises(ClientError, match="closed"):
        client.runs()


def test_a_snapshot_comes_first_where_the_records_are_gone_and_the_end_still_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = MemoryLog(retention=Retention(frames_age_s=0.0))
    monkeypatch.setattr("headrace.server.open_log", lambda config: log)

    async def scenario() -> None:
        async with serving(Talker()) as server, AsyncClient(server.url) as client:
            run = await client.start("hi")
            await run.result()
            whole = await logged(server, run.id)
            await log.tidy()
            items = [item async for item in run.events(after=1)]
            state = fold(whole, initial(run.id))
            assert items[0] == Snapshot(as_of_seq=len(whole), state=state)
            assert isinstance(items[-1], Record)
            assert isinstance(items[-1].event, RunFinished)
            async with client.connect() as socket:
                followed = await socket.follow(run.id, after=1)
                assert [item async for item in followed.events()] == items

    run_async(scenario())
