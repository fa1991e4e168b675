"""Two instances on one Redis: what one appends the other shows, and a run has one owner."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis

from harness import run_async, until
from headrace.errors import InvalidCursor, RunEnded, SeqConflict, StaleFence
from headrace.events import CancelRequested, InputReceived, InputRequested, Record, SteerReceived, TextDelta, event_type
from headrace.http.stream import known_head
from headrace.log.follow import follow
from headrace.log.ports import Claim, Log, NewRun
from headrace.log.redis.redislog import RedisLog
from headrace.runs import Runs
from headrace.state import RunState
from headrace.testing.log_contract import DONE, Told, begin, run_id, started, text_of, words
from headrace.wire.codec import encode_record

Pair = Callable[[RedisLog, RedisLog], Coroutine[Any, Any, None]]


@pytest.fixture
def on_two(redis_url: str, redis_prefix: str) -> Callable[[Pair], None]:
    """Run a test with two logs on one Redis."""

    def run(test: Pair) -> None:
        async def main() -> None:
            async with RedisLog(redis_url, prefix=redis_prefix) as a, RedisLog(redis_url, prefix=redis_prefix) as b:
                await test(a, b)

        run_async(main())

    return run


async def collect(log: Log, run: str, *, after: int = 0) -> list[Record]:
    """Follow a run to its end."""
    records: list[Record] = []
    async for item in follow(log, run, after=after):
        assert not isinstance(item, RunState)
        records.append(item)
    return records


@asynccontextmanager
async def following(log: Log, run: str, count: int = 1) -> AsyncIterator[Awaitable[list[list[Record]]]]:
    """`count` followers, subscribed and at the head; await them for what each one saw."""
    tasks = [asyncio.create_task(collect(log, run)) for _ in range(count)]
    yield asyncio.gather(*tasks)
    for task in tasks:
        task.cancel()


def test_a_follower_of_another_instance_gets_every_record_once_and_in_order(on_two: Callable[[Pair], None]) -> None:
    async def test(a: RedisLog, b: RedisLog) -> None:
        claim = await begin(a)
        writer = a.writer(claim)
        async with following(b, claim.run_id) as seen:
            for number in range(500):
                writer.emit(TextDelta(text=f"{number} 漢字 🙂 "))
                if number % 7 == 0:
                    await asyncio.sleep(0)
                if number % 50 == 0:
                    await writer.commit()
            await writer.commit(DONE)
            (records,) = await seen
        assert [record.seq for record in records] == list(range(1, 503))
        assert text_of(records) == "".join(f"{number} 漢字 🙂 " for number in range(500))

    on_two(test)


def test_requests_of_another_instance_reach_the_owner_and_stand_in_order(on_two: Callable[[Pair], None]) -> None:
    async def test(a: RedisLog, b: RedisLog) -> None:
        claim = await begin(a)
        owner = Told()
        a.subscribe_owner(claim.run_id, owner)
        writer = a.writer(claim)
        for number in range(50):
            writer.emit(TextDelta(text=f"{number} "))
            if number % 5 == 0:
                await b.append(claim.run_id, [SteerReceived(steer_id=str(number), text="x")])
        cancelled = await b.append(claim.run_id, [CancelRequested()])
        await until(lambda: owner.heard.qsize() == 11)
        await writer.commit(DONE)
        mine, others = await a.read(claim.run_id), await b.read(claim.run_id)
        assert list(mine) == list(others)
        assert [record.seq for record in mine] == list(range(1, 64))
        told = [owner.heard.get_nowait() for _ in range(11)]
        assert told[-1] == cancelled[0]
        assert [record for record in mine if record in told] == told
        assert text_of(mine) == "".join(f"{number} " for number in range(50))

    on_two(test)


def test_the_owners_follower_here_sees_a_request_made_there(on_two: Callable[[Pair], None]) -> None:
    async def test(a: RedisLog, b: RedisLog) -> None:
        claim = await begin(a)
        async with following(a, claim.run_id, 3) as seen:
            await b.append(claim.run_id, [InputReceived(input_id="i", value={"ok": True})], key="input:i")
            await a.writer(claim).commit(TextDelta(text="then"), DONE)
            for records in await seen:
                assert {event_type(record.event) for record in records[1:3]} == {"input.received", "text.delta"}
                assert [record.seq for record in records] == [1, 2, 3, 4]

    on_two(test)


def test_twenty_followers_of_another_instance_cost_one_read_per_wake(
    on_two: Callable[[Pair], None], redis_url: str
) -> None:
    async def test(a: RedisLog, b: RedisLog) -> None:
        claim = await begin(a)
        writer = a.writer(claim)
        seen = [0] * 20

        def wake(number: int) -> None:
            seen[number] += len(b.recent(claim.run_id, seen[number]) or ())

        for number in range(20):
            b.subscribe(claim.run_id, lambda number=number: wake(number))  # type: ignore[misc]
        await b.read_frames(claim.run_id)  # all have read up to the head
        seen[:] = [1] * 20
        await writer.commit(TextDelta(text="the subscription is under way, this may be read twice"))
        await until(lambda: seen == [2] * 20)
        before = _reads(redis_url)
        for number in range(3, 33):
            await writer.commit(TextDelta(text="x"))
            await until(lambda number=number: seen == [number] * 20)  # type: ignore[misc]
        assert _reads(redis_url) - before == 30

    on_two(test)


def _reads(url: str) -> int:
    with redis.Redis.from_url(url) as client:
        return int(client.info("commandstats").get("cmdstat_xrange", {"calls": 0})["calls"])


def test_the_former_owner_is_told_and_can_append_no_more(on_two: Callable[[Pair], None]) -> None:
    async def test(a: RedisLog, b: RedisLog) -> None:
        old = await begin(a)
        writer = a.writer(old)
        await writer.commit(TextDelta(text="old "))
        owner = Told()
        a.subscribe_owner(old.run_id, owner)
        new = await b.claim(old.run_id)
        assert new.fence == old.fence + 1
        assert await owner.heard.get() == "lost"
        with pytest.raises(StaleFence):
            writer.emit(TextDelta(text="no"))
        with pytest.raises(StaleFence):
            await writer.commit()
        with pytest.raises(StaleFence):
            await a.append(old.run_id, words("no"), fence=old.fence)
        with pytest.raises(StaleFence):
            a.writer(old)
        await b.writer(new).commit(TextDelta(text="new"), DONE)
        assert text_of(await a.read(old.run_id)) == text_of(await b.read(old.run_id)) == "old new"

    on_two(test)


def test_what_the_former_owner_emits_before_it_is_told_is_refused(on_two: Callable[[Pair], None]) -> None:
    async def test(a: RedisLog, b: RedisLog) -> None:
        old = await begin(a)
        writer = a.writer(old)
        a._hearing._channels._heard = lambda channel, message: None  # it hears nothing of the claim
        new = await b.claim(old.run_id)
        writer.emit(TextDelta(text="no"))
        with pytest.raises(StaleFence):
            await writer.commit()
        await b.writer(new).commit(TextDelta(text="yes"))
        assert text_of(await b.read(old.run_id)) == "yes"

    on_two(test)


def test_a_cursor_that_another_instance_gave_is_not_refused_by_an_owner_that_knows_less(
    on_two: Callable[[Pair], None],
) -> None:
    """It stood still, or Redis' answer to its own append is still on the way while others have read the record."""

    async def test(a: RedisLog, b: RedisLog) -> None:
        old = await begin(a)
        deafen(a)
        await b.append(old.run_id, [SteerReceived(steer_id="s", text="go", mode="next_turn")])
        assert (await a.head(old.run_id)).seq == 1
        assert (await known_head(a, old.run_id, 2)).seq == 2
        with pytest.raises(InvalidCursor):
            await known_head(a, old.run_id, 3)

    on_two(test)


def test_a_former_owner_takes_the_answer_to_a_question_that_its_successor_asked(on_two: Callable[[Pair], None]) -> None:
    async def test(a: RedisLog, b: RedisLog) -> None:
        old = await begin(a)
        deafen(a)
        new = await b.claim(old.run_id)
        await b.writer(new).commit(InputRequested(input_id="i", kind="approval"))
        runs = Runs(log=a, agents={"x": ""}, launch=no_launch)
        state = await runs.answer(old.run_id, "default", "i", True)
        assert [asked.value for asked in state.inputs] == [True]

    on_two(test)


def no_launch(claim: Claim, tenant: str, *, new_thread: bool) -> None:
    raise AssertionError("nothing begins here")


def deafen(log: RedisLog) -> None:
    """It hears nothing any more of what others do."""
    log._hearing._channels._heard = lambda channel, message: None


def test_a_batch_that_comes_after_a_later_one_writes_nothing(on_two: Callable[[Pair], None]) -> None:
    """As it may lie in the socket of a server that stood still, long after it was sent again on another connection."""

    async def test(a: RedisLog, b: RedisLog) -> None:
        claim = await begin(a)
        run, appends = a._runs[claim.run_id], a._writing._appends
        frames = [encode_record(2, 1, TextDelta(text="x"))]
        for number in (b"100", b"101", b"100"):
            answer: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
            a._writes.route(appends.batch(run, frames, number, answer))
            assert (await answer)[0] == b"ok"
        assert (await b.head(claim.run_id)).seq == 3

    on_two(test)


def test_followers_stay_with_a_run_that_changes_hands(on_two: Callable[[Pair], None]) -> None:
    async def test(a: RedisLog, b: RedisLog) -> None:
        first = await begin(a)
        async with following(a, first.run_id) as at_a, following(b, first.run_id) as at_b:
            await a.writer(first).commit(*words("a", "b"))
            second = await b.claim(first.run_id)
            await b.writer(second).commit(*words("c", "d"))
            third = await a.claim(first.run_id)
            await a.writer(third).commit(*words("e", "f"), DONE)
            for records in [*await at_a, *await at_b]:
                assert [record.seq for record in records] == list(range(1, 9))
                assert text_of(records) == "abcdef"

    on_two(test)


def test_a_released_run_is_adopted_by_the_other_instance_with_all_its_records(on_two: Callable[[Pair], None]) -> None:
    async def test(a: RedisLog, b: RedisLog) -> None:
        claim = await begin(a)
        free = asyncio.Event()
        b.subscribe_work(free.set)
        a.writer(claim).emit(TextDelta(text="last words"))
        await a.release(claim)
        await free.wait()
        (adopted,) = await b.adopt(10)
        assert (adopted.run_id, adopted.fence) == (claim.run_id, claim.fence + 1)
        assert text_of(await b.read(claim.run_id)) == "last words"
        assert list(await a.adopt(10)) == []

    on_two(test)


def test_a_conflict_is_found_whoever_asks(on_two: Callable[[Pair], None]) -> None:
    async def test(a: RedisLog, b: RedisLog) -> None:
        claim = await begin(a)
        await b.append(claim.run_id, [CancelRequested()])
        with pytest.raises(SeqConflict):
            await a.append(claim.run_id, [DONE], fence=claim.fence, expected_seq=1)
        await a.append(claim.run_id, [DONE], fence=claim.fence, expected_seq=2)
        with pytest.raises(RunEnded):
            await b.append(claim.run_id, [CancelRequested()])
        assert (await b.head(claim.run_id)).closed

    on_two(test)


def test_a_key_belongs_to_one_run_whichever_instance_is_asked(on_two: Callable[[Pair], None]) -> None:
    async def test(a: RedisLog, b: RedisLog) -> None:
        created = await asyncio.gather(
            *(
                log.create(NewRun(run_id=run_id(number), key="k", fingerprint="f"), started(), claim=True)
                for number, log in enumerate([a, b] * 5)
            )
        )
        assert len({result.run_id for result in created}) == 1
        assert [result.new for result in created].count(True) == 1
        assert [result.claim is not None for result in created].count(True) == 1
        assert [row.run_id for row in await b.runs("default")] == [created[0].run_id]

    on_two(test)


def test_a_key_whose_run_was_never_begun_is_completed_by_whoever_meets_it(on_two: Callable[[Pair], None]) -> None:
    async def test(a: RedisLog, b: RedisLog) -> None:
        abandoned = NewRun(run_id=run_id(1), key="k", fingerprint="f")
        await a._holding._creation.reserve(abandoned)
        created = await b.create(NewRun(run_id=run_id(2), key="k", fingerprint="f"), started(), claim=True)
        assert (created.run_id, created.new) == (abandoned.run_id, True)
        assert (await a.head(abandoned.run_id)).seq == 1

    on_two(test)


def test_prefixes_keep_deployments_apart(redis_url: str, redis_prefix: str) -> None:
    async def main() -> None:
        async with RedisLog(redis_url, prefix=redis_prefix) as a, RedisLog(redis_url, prefix=redis_prefix + "x") as b:
            claim = await begin(a)
            await a.release(claim)
            assert await b.find(claim.run_id) is None
            assert list(await b.runs("default")) == []
            assert list(await b.adopt(10)) == []
            assert (await begin(b)).fence == 1

    run_async(main())
