"""What happens once: keys of appends and of new runs, and ids of runs."""

import asyncio

import pytest

from headrace.errors import IdempotencyConflict, InvalidRequest, RunEnded
from headrace.events import CancelRequested, TextDelta
from headrace.log.ports import Log, NewRun
from headrace.testing.log_contract.runs import DONE, Contract, begin, promise, run_id, started, unfinished


class KeysContract(Contract):
    @promise
    async def test_an_append_with_a_key_happens_once(self, log: Log) -> None:
        claim = await begin(log)
        both = await asyncio.gather(
            log.append(claim.run_id, [CancelRequested()], key="k"),
            log.append(claim.run_id, [CancelRequested()], key="k"),
        )
        assert list(both[0]) == list(both[1])
        await log.writer(claim).commit(TextDelta(text="later"), DONE)
        assert list(await log.append(claim.run_id, [CancelRequested()], key="k")) == list(both[0])
        with pytest.raises(RunEnded):
            await log.append(claim.run_id, [CancelRequested()], key="another")
        assert (await log.head(claim.run_id)).seq == 4

    @promise
    async def test_the_same_key_gives_the_same_run_also_at_the_same_time(self, log: Log) -> None:
        news = [NewRun(run_id=run_id(n), key="k", fingerprint="f") for n in range(1, 5)]
        created = await asyncio.gather(*(log.create(new, started(), claim=True) for new in news))
        assert {result.run_id for result in created} == {run_id(1)}
        assert [result.new for result in created] == [True, False, False, False]
        assert [result.claim is not None for result in created] == [True, False, False, False]
        again = await log.create(NewRun(run_id=run_id(9), key="k", fingerprint="f"), started())
        assert (again.run_id, again.new) == (run_id(1), False)
        assert [row.run_id for row in await log.runs("default")] == [run_id(1)]

    @promise
    async def test_a_key_with_another_request_is_a_conflict(self, log: Log) -> None:
        await log.create(NewRun(run_id=run_id(1), key="k", fingerprint="f"), started())
        with pytest.raises(IdempotencyConflict):
            await log.create(NewRun(run_id=run_id(2), key="k", fingerprint="g"), started())
        assert await log.find(run_id(2)) is None
        second = await log.create(NewRun(run_id=run_id(2), key="other", fingerprint="g"), started())
        assert second.new

    @promise
    async def test_a_key_is_its_tenants_own(self, log: Log) -> None:
        first = await log.create(NewRun(run_id=run_id(1), tenant="a", key="k", fingerprint="f"), started())
        second = await log.create(NewRun(run_id=run_id(2), tenant="b", key="k", fingerprint="g"), started())
        assert (first.new, second.new) == (True, True)

    @promise
    async def test_a_run_id_begins_one_run(self, log: Log) -> None:
        new = NewRun(run_id=run_id(1), fingerprint="f")
        both = await asyncio.gather(log.create(new, started()), log.create(new, started()))
        assert sorted(result.new for result in both) == [False, True]
        with pytest.raises(IdempotencyConflict):
            await log.create(NewRun(run_id=run_id(1), fingerprint="g"), started())
        with pytest.raises(IdempotencyConflict):
            await log.create(NewRun(run_id=run_id(1), tenant="b", fingerprint="f"), started())
        assert (await log.head(run_id(1))).seq == 1

    @promise
    async def test_a_run_id_that_is_none_is_refused(self, log: Log) -> None:
        for wrong in ("", "a b", "a\nb", "../x", "x" * 129, "é"):
            with pytest.raises(InvalidRequest):
                await log.create(NewRun(run_id=wrong), started())
        assert await unfinished(log) == []
