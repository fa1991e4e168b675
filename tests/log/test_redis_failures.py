"""When Redis fails: away, restarted empty, full, slow, or failed over to a replica that lacks the tail."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

import pytest

from harness import run_async, until
from headrace.errors import LogLost, LogUnavailable, RunEnded
from headrace.events import CancelRequested, Record, RunErrored, TextDelta
from headrace.log.follow import follow
from headrace.log.ports import Head, Log, NewRun, Writer
from headrace.log.redis.redislog import RedisLog
from headrace.log.redis.scripts import APPEND, CLAIM, CREATE, SEAL, Script
from headrace.state import RunState
from headrace.testing.log_contract import DONE, begin, run_id, started, text_of, words
from proxy import Link, Proxy
from redis_server import RedisServer, require_server

WITHIN_S = 0.5
"""How long these logs wait for an answer."""


@asynccontextmanager
async def two_logs(url: str) -> AsyncIterator[tuple[RedisLog, RedisLog]]:
    async with RedisLog(url, answer_within_s=WITHIN_S) as a, RedisLog(url, answer_within_s=WITHIN_S) as b:
        yield a, b


async def followed(log: Log, run: str, given: list[Record | RunState] | None = None) -> list[Record | RunState]:
    """All that a follower is given, to the end; `given` has it from the beginning on."""
    given = [] if given is None else given
    async for item in follow(log, run):
        given.append(item)
    return given


def records_of(items: list[Record | RunState]) -> list[Record]:
    return [item for item in items if isinstance(item, Record)]


async def say_on(writer: Writer, text: str) -> None:
    while True:
        await writer.commit(TextDelta(text=text))


async def babble(writer: Writer) -> None:
    """Emit without waiting for anything to be stored."""
    while True:
        for _ in range(1000):
            writer.emit(TextDelta(text="x"))
        await asyncio.sleep(0.01)


async def in_trouble(log: RedisLog) -> None:
    await until(lambda: not log.writable)


# Away and back


def test_a_run_waits_for_redis_and_goes_on_and_nothing_is_lost(own_redis: RedisServer) -> None:
    async def main() -> None:
        async with two_logs(own_redis.url) as (a, b):
            claim = await begin(a)
            here, there = (asyncio.create_task(followed(log, claim.run_id)) for log in (a, b))
            writer = a.writer(claim)
            await writer.commit(*words("before "))
            own_redis.kill()
            writer.emit(TextDelta(text="while "))
            stored = asyncio.create_task(writer.commit(TextDelta(text="away ")))
            await in_trouble(a)
            await in_trouble(b)
            assert not stored.done()
            for log in (a, b):
                with pytest.raises(LogUnavailable):
                    await log.create(NewRun(run_id=run_id(2)), started(), claim=True)
                with pytest.raises(LogUnavailable):
                    await log.append(claim.run_id, [CancelRequested()])
            await asyncio.to_thread(own_redis.start)
            await stored
            await writer.commit(TextDelta(text="after"), DONE)
            for items in (await here, await there):
                assert [record.seq for record in records_of(items)] == list(range(1, 7))
                assert text_of(records_of(items)) == "before while away after"
            await until(lambda: a.writable and b.writable)
            assert (await begin(b, 3)).fence == 1

    run_async(main())


def test_a_server_that_stands_still_delays_a_run_and_writes_nothing_twice(own_redis: RedisServer) -> None:
    async def main() -> None:
        async with two_logs(own_redis.url) as (a, b):
            claim = await begin(a)
            there = asyncio.create_task(followed(b, claim.run_id))
            writer = a.writer(claim)
            await writer.commit(TextDelta(text="0"))
            await until(lambda: b.recent(claim.run_id, 2) is not None)
            own_redis.pause()
            stored = asyncio.create_task(writer.commit(*words("a", "b")))
            await in_trouble(a)  # given up waiting at least once: what was sent lies in the socket of a stopped server
            with pytest.raises(LogUnavailable):
                await b.append(claim.run_id, [CancelRequested()])
            own_redis.resume()
            await stored
            await writer.commit(*words("c"), DONE)
            assert text_of(records_of(await there)) == "0abc"
            assert text_of(await b.read(claim.run_id)) == "0abc"

    run_async(main())


_link: ContextVar[Link] = ContextVar("link")


class LossyProxy(Proxy):
    """`lose`: the first command with these bytes in it is carried out, but instead of its answer comes a reset."""

    lose: bytes | None = None
    lost = 0

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._doomed: set[Link] = set()

    async def __aenter__(self) -> "LossyProxy":
        await super().__aenter__()
        return self

    async def _carry(self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _link.set(link)
        await super()._carry(link, reader, writer)

    async def _up(self, reader: asyncio.StreamReader, upstream: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if self.lose is not None and self.lose in data:
                self.lose = None
                self._doomed.add(_link.get())
            upstream.write(data)

    async def _down(self, link: Link, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await upstream.read(65536):
            if link in self._doomed:
                self.lost += 1
                link.reset()
                return
            writer.write(data)


@pytest.mark.parametrize("script", [APPEND, CLAIM, CREATE, SEAL], ids=lambda script: script.name)
def test_what_was_done_but_not_answered_is_done_once(own_redis: RedisServer, script: Script) -> None:
    async def main() -> None:
        async with (
            LossyProxy(own_redis.port) as proxy,
            RedisLog(f"redis://127.0.0.1:{proxy.port}", answer_within_s=WITHIN_S) as log,
            RedisLog(own_redis.url) as other,
        ):
            proxy.lose = script.source if script is not APPEND else None  # the server does not know it by its hash yet
            claim = await begin(log)
            await log.writer(claim).commit(TextDelta(text="0"))
            if script is APPEND:
                proxy.lose = script.sha
                await log.writer(claim).commit(*words("1", "2"))
                proxy.lose = script.sha
                (record,) = await log.append(claim.run_id, [TextDelta(text="3")], fence=claim.fence)
                assert record.seq == 5
            claim = await log.claim(claim.run_id)
            assert claim.fence == 2
            await log.writer(claim).commit(DONE)
            await until(lambda: proxy.lost == (2 if script is APPEND else 1))
            assert text_of(await other.read(claim.run_id)) == ("0123" if script is APPEND else "0")
            assert [row.status for row in await other.runs("default")] == ["completed"]
            assert [record.seq for record in await other.read(claim.run_id)] == list(
                range(1, 1 + (await other.head(claim.run_id)).seq)
            )

    run_async(main())


# Emptied, or a tail that is gone


def assert_ended_as_lost(items: list[Record | RunState], text: str) -> None:
    """What a follower got: all that was durable, and then a clear end."""
    end = items[-1]
    assert isinstance(end, Record)
    assert isinstance(end.event, RunErrored)
    assert end.event.code == "log_lost"
    states = [item for item in items if isinstance(item, RunState)]
    assert len(states) == 1
    assert (states[0].text, states[0].status) == (text, "failed")
    seqs = [record.seq for record in records_of(items)]
    assert seqs == sorted(set(seqs))


def test_a_redis_that_comes_back_empty_gives_each_run_a_clear_end(own_redis: RedisServer) -> None:
    async def main() -> None:
        async with two_logs(own_redis.url) as (a, b):
            busy, idle = await begin(a, 1), await begin(a, 2, thread_id="t2")
            followers = [(log, run.run_id, list[Record | RunState]()) for run in (busy, idle) for log in (a, b)]
            waiting = [asyncio.create_task(followed(*follower)) for follower in followers]
            writer = a.writer(busy)
            for claim in (busy, idle):
                await a.writer(claim).commit(*words("said ", "before"))
            await until(lambda: all(text_of(records_of(given)) == "said before" for _, _, given in followers))
            await asyncio.to_thread(own_redis.restart, empty=True)
            with pytest.raises((LogLost, RunEnded)):
                await say_on(writer, " after")
            for items in await asyncio.gather(*waiting):
                assert_ended_as_lost(items, "said before")
            with pytest.raises(RunEnded):
                await a.append(busy.run_id, [DONE], fence=busy.fence)
            for log in (a, b):
                state = await log.state(busy.run_id)
                assert (state.status, state.text) == ("failed", "said before")
                assert {row.run_id for row in await log.runs("default")} == {busy.run_id, idle.run_id}
            assert list(await b.adopt(10)) == []

    run_async(main())


def test_a_replica_that_lacks_the_tail_is_found_out(tmp_path: Path) -> None:
    require_server()

    async def main(master: RedisServer, replica: RedisServer) -> None:
        async with (
            Proxy(master.port) as replication,
            Proxy(master.port) as address,  # as a name that points to the master of the day
            two_logs(f"redis://127.0.0.1:{address.port}") as (a, b),
        ):
            await asyncio.to_thread(follow_master, replica, replication.port)
            claim = await begin(a)
            untouched = await begin(a, 2)
            there = asyncio.create_task(followed(b, claim.run_id))
            writer = a.writer(claim)
            await writer.commit(TextDelta(text="both have this. "))
            with master.client() as client:
                assert await asyncio.to_thread(client.wait, 1, 5000) == 1
            replica.pause()
            replication.hole = True  # what waits in the socket of a paused replica would still reach it
            await writer.commit(*words("only the master ", "has this."))
            await until(lambda: len(b.recent(claim.run_id, 2) or ()) == 2)
            master.kill()
            replica.resume()
            await asyncio.to_thread(replica.promote)
            address.point_to(replica.port)
            end = await there
            # What was durable and then lost had been shown, so it stays shown, and its seqs are not used again.
            assert text_of(records_of(end)) == "both have this. only the master has this."
            assert_ended_as_lost(end, "both have this. only the master has this.")
            last = records_of(end)[-1]
            assert (await b.head(claim.run_id)).seq == last.seq > 4
            await a.writer(untouched).commit(TextDelta(text="goes on"), DONE)
            assert text_of(await b.read(untouched.run_id)) == "goes on"

    with RedisServer(tmp_path / "master") as master, RedisServer(tmp_path / "replica") as replica:
        run_async(main(master, replica))


def test_an_end_that_the_replica_lacks_is_written_again(tmp_path: Path) -> None:
    """Otherwise the run would be adopted, and end a second time."""
    require_server()

    async def main(master: RedisServer, replica: RedisServer) -> None:
        async with (
            Proxy(master.port) as replication,
            Proxy(master.port) as address,
            two_logs(f"redis://127.0.0.1:{address.port}") as (a, b),
        ):
            await asyncio.to_thread(follow_master, replica, replication.port)
            claim = await begin(a)
            await a.writer(claim).commit(TextDelta(text="all of it"))
            with master.client() as client:
                assert await asyncio.to_thread(client.wait, 1, 5000) == 1
            replication.hole = True
            await a.writer(claim).commit(DONE)
            master.kill()
            await asyncio.to_thread(replica.promote)
            address.point_to(replica.port)
            assert (await head_when(b, claim.run_id, closed=True)).seq == 3
            state = await b.state(claim.run_id)
            assert (state.status, state.text, state.seq) == ("completed", "all of it", 3)
            (last,) = await b.read(claim.run_id, after=2)
            assert last.event == DONE
            with pytest.raises(RunEnded):
                await b.claim(claim.run_id)

    with RedisServer(tmp_path / "master") as master, RedisServer(tmp_path / "replica") as replica:
        run_async(main(master, replica))


async def head_when(log: Log, run: str, *, closed: bool) -> Head:
    """The head, asked for until Redis answers and the run is, or is not, closed."""
    async with asyncio.timeout(10):
        while True:
            with suppress(LogUnavailable):
                head = await log.head(run)
                if head.closed == closed:
                    return head
            await asyncio.sleep(0.01)


def follow_master(replica: RedisServer, port: int) -> None:
    with replica.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", port)
    replica.wait_for_link()


# Full


def test_a_full_redis_makes_runs_wait_and_turns_new_ones_away(own_redis: RedisServer) -> None:
    async def main() -> None:
        async with two_logs(own_redis.url) as (a, b):
            claim = await begin(a)
            there = asyncio.create_task(followed(b, claim.run_id))
            await a.writer(claim).commit(TextDelta(text="before "))
            with own_redis.client() as client:
                client.config_set("maxmemory", "1")
                stored = asyncio.create_task(a.writer(claim).commit(TextDelta(text="while ")))
                await in_trouble(a)
                with pytest.raises(LogUnavailable):
                    await b.create(NewRun(run_id=run_id(2)), started(), claim=True)
                with pytest.raises(LogUnavailable):
                    await b.append(claim.run_id, [CancelRequested()])
                assert not stored.done()
                assert text_of(await b.read(claim.run_id)) == "before "  # reading goes on
                client.config_set("maxmemory", "0")
            await stored
            await a.writer(claim).commit(TextDelta(text="after"), DONE)
            assert text_of(records_of(await there)) == "before while after"
            await until(lambda: a.writable and b.writable)

    run_async(main())


def test_a_run_that_piles_up_too_much_while_redis_is_away_is_told_so(own_redis: RedisServer) -> None:
    async def main() -> None:
        async with RedisLog(own_redis.url, answer_within_s=WITHIN_S, tidy_every_s=0.05) as log:
            claim = await begin(log)
            writer = log.writer(claim)
            own_redis.kill()
            with pytest.raises(LogUnavailable):
                await babble(writer)
            emitted = writer.seq
            await asyncio.to_thread(own_redis.start)
            await log.writer(claim).commit(DONE)
            assert (await log.head(claim.run_id)).seq == emitted + 1

    run_async(main(), deadline=60)


def test_leaving_does_not_wait_for_a_redis_that_is_gone(own_redis: RedisServer) -> None:
    async def main() -> None:
        async with RedisLog(own_redis.url, answer_within_s=WITHIN_S) as log:
            claim = await begin(log)
            own_redis.kill()
            log.writer(claim).emit(TextDelta(text="never stored"))
            await in_trouble(log)

    run_async(main())
