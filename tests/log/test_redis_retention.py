"""What Redis keeps of a run, and for how long."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

import pytest

from harness import run_async, until
from headrace.errors import UnknownRun
from headrace.events import Record, TextDelta
from headrace.log.follow import follow
from headrace.log.ports import Head, NewRun
from headrace.log.redis.redislog import RedisLog
from headrace.log.retention import Retention
from headrace.state import RunState
from headrace.testing.log_contract import DONE, begin, run_id, started, words

T = TypeVar("T")


@asynccontextmanager
async def two_logs(url: str, prefix: str, retention: Retention) -> AsyncIterator[tuple[RedisLog, RedisLog]]:
    async with (
        RedisLog(url, prefix=prefix, retention=retention, tidy_every_s=0.01, keep_ended_s=0) as a,
        RedisLog(url, prefix=prefix, retention=retention) as b,
    ):
        yield a, b


async def answer_once(ask: Callable[[], Awaitable[T]], right: Callable[[T], object], deadline: float = 10.0) -> T:
    """Ask until the answer is right, and return it."""
    async with asyncio.timeout(deadline):
        while True:
            answer = await ask()
            if right(answer):
                return answer
            await asyncio.sleep(0.001)


def test_the_end_and_the_state_outlive_the_records(redis_url: str, redis_prefix: str) -> None:
    async def main() -> None:
        async with two_logs(redis_url, redis_prefix, Retention(frames_age_s=0.05)) as (a, b):
            claim = await begin(a)
            await a.writer(claim).commit(*words("a", "b"), DONE)
            for log in (a, b):
                head = await answer_once(partial(log.head, claim.run_id), lambda head: head.first == head.seq)
                assert head == Head(seq=4, first=4, closed=True)
                (last,) = await log.read(claim.run_id)
                assert (last.seq, last.event) == (4, DONE)
                assert list(await log.read(claim.run_id, after=4)) == []
                state = await log.state(claim.run_id)
                assert (state.text, state.status, state.seq) == ("ab", "completed", 4)
                assert [row.run_id for row in await log.runs("default")] == [claim.run_id]
                snapshot, terminal = [item async for item in follow(log, claim.run_id)]
                assert isinstance(snapshot, RunState)
                assert isinstance(terminal, Record)
                assert (snapshot.text, terminal) == ("ab", last)

    run_async(main())


def test_a_follower_that_hears_nothing_until_the_records_are_gone_gets_the_state_and_the_end(
    redis_url: str, redis_prefix: str
) -> None:
    async def main() -> None:
        async with two_logs(redis_url, redis_prefix, Retention(frames_age_s=0.05)) as (a, b):
            claim = await begin(a)
            deaf = b._hearing._channels
            deaf._heard = lambda channel, message: None
            items: list[Record | RunState] = []

            async def collect() -> None:
                async for item in follow(b, claim.run_id):
                    items.append(item)  # noqa: PERF401  (looked at while it grows)

            following = asyncio.create_task(collect())
            await until(lambda: b.recent(claim.run_id, 1) is not None)
            await a.writer(claim).commit(*words("a", "b"), DONE)
            await answer_once(partial(a.head, claim.run_id), lambda head: head.first == head.seq)
            assert len(items) == 1
            b._hearing.stir()
            await following
            _, snapshot, terminal = items
            assert isinstance(snapshot, RunState)
            assert isinstance(terminal, Record)
            assert (snapshot.text, terminal.event, terminal.seq) == ("ab", DONE, 4)

    run_async(main())


def test_a_run_is_forgotten_in_the_end_with_its_key_and_its_place_in_the_list(
    redis_url: str, redis_prefix: str
) -> None:
    async def main() -> None:
        retention = Retention(frames_age_s=0.05, state_age_s=0.1)
        async with two_logs(redis_url, redis_prefix, retention) as (a, b):
            new = NewRun(run_id=run_id(1), key="k", fingerprint="f")
            created = await a.create(new, started(), claim=True)
            assert created.claim is not None
            await a.writer(created.claim).commit(DONE)
            await until(lambda: created.run_id not in a._runs)
            await answer_once(partial(b.find, created.run_id), lambda row: row is None)
            for log in (a, b):
                with pytest.raises(UnknownRun):
                    await log.head(created.run_id)
                assert list(await log.runs("default")) == []
                assert list(await log.adopt(10)) == []
            again = await b.create(NewRun(run_id=run_id(2), key="k", fingerprint="other"), started(), claim=True)
            assert again.new
            assert again.claim is not None
            await b.writer(again.claim).commit(DONE)
            await b._housekeeping.tidy()
            assert created.run_id not in await b._stored.listed("default", None, None, 10)

    run_async(main())


def test_a_live_run_is_trimmed_for_everybody_and_the_next_owner_knows_all_of_it(
    redis_url: str, redis_prefix: str
) -> None:
    async def main() -> None:
        async with two_logs(redis_url, redis_prefix, Retention(max_records=50)) as (a, b):
            claim = await begin(a)
            writer = a.writer(claim)
            for number in range(200):
                await writer.commit(TextDelta(text=f"{number} "))
            said = "".join(f"{number} " for number in range(200))
            first = a._runs[claim.run_id].first
            assert first > 100
            head = await answer_once(partial(b.head, claim.run_id), lambda head: head.first == first)
            assert (head.seq, head.closed) == (201, False)
            assert [record.seq for record in await b.read(claim.run_id)] == list(range(head.first, 202))
            assert (await b.state(claim.run_id)).text == said
            taken = await b.claim(claim.run_id)
            await b.writer(taken).commit(TextDelta(text="and on"), DONE)
            assert (await b.state(claim.run_id)).text == said + "and on"
            snapshot, _ = [item async for item in follow(a, claim.run_id)]
            assert isinstance(snapshot, RunState)
            assert snapshot.text == said + "and on"

    run_async(main())
