"""Who works on what: runs that are free, adopted, released, lost."""

import asyncio

import pytest

from headrace.errors import StaleFence
from headrace.events import RunStarted, TextDelta
from headrace.log.ports import Claim, Log, NewRun
from headrace.testing.log_contract.runs import DONE, Contract, Told, begin, promise, run_id, started, text_of


class WorkContract(Contract):
    @promise
    async def test_free_runs_are_adopted_oldest_first_with_a_new_fence(self, log: Log) -> None:
        for number in (3, 1, 2):
            await log.create(NewRun(run_id=run_id(number)), started())
        first, second = await log.adopt(2)
        assert [(claim.run_id, claim.fence) for claim in (first, second)] == [(run_id(1), 1), (run_id(2), 1)]
        assert [claim.run_id for claim in await log.adopt(10)] == [run_id(3)]
        assert list(await log.adopt(10)) == []
        await log.writer(second).commit(TextDelta(text="mine"))
        assert text_of(await log.read(second.run_id)) == "mine"

    @promise
    async def test_two_that_adopt_at_once_never_get_the_same_run(self, log: Log) -> None:
        for number in range(1, 6):
            await log.create(NewRun(run_id=run_id(number)), started())
        shares = await asyncio.gather(*(log.adopt(2) for _ in range(4)))
        assert [len(share) for share in shares] == [2, 2, 1, 0]
        assert sorted(claim.run_id for share in shares for claim in share) == [run_id(n) for n in range(1, 6)]

    @promise
    async def test_a_run_that_is_held_is_not_adopted_until_it_is_released(self, log: Log) -> None:
        held = await begin(log, 1)
        await log.writer(await begin(log, 2)).commit(DONE)
        assert list(await log.adopt(10)) == []
        await log.release(held)
        (adopted,) = await log.adopt(10)
        assert adopted == Claim(run_id=held.run_id, fence=held.fence + 1, expires_at=adopted.expires_at)
        with pytest.raises(StaleFence):
            log.writer(held).emit(TextDelta(text="no"))

    @promise
    async def test_a_stale_release_and_one_of_an_ended_run_change_nothing(self, log: Log) -> None:
        old = await begin(log)
        new = await log.claim(old.run_id)
        await log.release(old)
        assert list(await log.adopt(10)) == []
        await log.writer(new).commit(DONE)
        await log.release(new)
        await log.release(Claim(run_id=run_id(404), fence=1))
        assert list(await log.adopt(10)) == []

    @promise
    async def test_a_release_is_told_to_those_who_look_for_work(self, log: Log) -> None:
        claim = await begin(log)
        work = asyncio.Event()
        stop = log.subscribe_work(work.set)
        await log.release(claim)
        await work.wait()
        stop()
        stop()
        work.clear()
        await log.release((await log.adopt(1))[0])
        assert not work.is_set()

    @promise
    async def test_whoever_begins_a_run_owns_it_and_may_write_at_once(self, log: Log) -> None:
        begun: list[Claim] = []

        def begin_to_work(claim: Claim) -> None:
            begun.append(claim)
            log.writer(claim).emit(TextDelta(text="first"))

        created = await log.create(NewRun(run_id=run_id(1)), started(), begun=begin_to_work)
        assert begun == [created.claim]
        await log.writer(begun[0]).commit(TextDelta(text=" second"))
        records = await log.read(run_id(1))
        assert [record.seq for record in records] == [1, 2, 3]
        assert (isinstance(records[0].event, RunStarted), text_of(records)) == (True, "first second")
        again = await log.create(NewRun(run_id=run_id(1)), started(), begun=begin_to_work)
        assert (again.new, len(begun)) == (False, 1)

    @promise
    async def test_who_has_lost_a_run_is_told_once(self, log: Log) -> None:
        claim = await begin(log)
        first, second = Told(), Told()
        log.subscribe_owner(claim.run_id, first)
        await log.writer(claim).commit(TextDelta(text="a"))
        assert first.heard.empty()
        again = await log.claim(claim.run_id)
        assert await first.heard.get() == "lost"
        log.subscribe_owner(claim.run_id, second)
        log.unsubscribe_owner(claim.run_id, first)
        await log.release(again)
        assert len(await log.adopt(1)) == 1
        assert await second.heard.get() == "lost"
        assert first.heard.empty()
        assert second.heard.empty()
