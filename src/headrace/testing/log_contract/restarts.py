"""What a log that was closed knows when it is opened again."""

import asyncio

import pytest

from headrace.errors import RunEnded
from headrace.events import CancelRequested
from headrace.log.ports import Log, NewRun
from headrace.testing.log_contract.runs import (
    DEADLINE_S,
    DONE,
    Contract,
    begin,
    frames_of,
    run_id,
    started,
    text_of,
    unfinished,
    words,
)


class RestartsContract(Contract):
    def test_a_restart_keeps_everything(self) -> None:
        if not self.survives:
            pytest.skip("this log forgets everything on closing")
        asyncio.run(self._restarted())

    async def _restarted(self) -> None:
        new = NewRun(run_id=run_id(1), tenant="a", key="k", fingerprint="f")
        async with asyncio.timeout(DEADLINE_S), self.open() as log:
            created = await log.create(new, started(), claim=True)
            claim = await log.claim(created.run_id)
            await log.append(claim.run_id, [CancelRequested()], key="c")
            await log.writer(claim).commit(*words("a", "b"))
            ended = await begin(log, 2, tenant="a")
            await log.writer(ended).commit(DONE)
            before = [await _everything(log, run) for run in (claim.run_id, ended.run_id)]
        async with asyncio.timeout(DEADLINE_S), self.open() as log:
            assert [await _everything(log, run) for run in (claim.run_id, ended.run_id)] == before
            assert await unfinished(log, "a") == [claim.run_id]
            again = await log.create(NewRun(run_id=run_id(9), tenant="a", key="k", fingerprint="f"), started())
            assert (again.run_id, again.new) == (claim.run_id, False)
            assert [r.seq for r in await log.append(claim.run_id, [CancelRequested()], key="c")] == [2]
            await log.append(claim.run_id, words("c"), fence=claim.fence)
            assert (await log.claim(claim.run_id)).fence == claim.fence + 1
            assert text_of(await log.read(claim.run_id)) == "abc"
            with pytest.raises(RunEnded):
                await log.append(ended.run_id, [CancelRequested()])

    def test_what_a_closed_log_held_is_adopted_after_a_restart(self) -> None:
        if not self.survives:
            pytest.skip("this log forgets everything on closing")
        asyncio.run(self._adopted_after_a_restart())

    async def _adopted_after_a_restart(self) -> None:
        async with asyncio.timeout(DEADLINE_S), self.open() as log:
            held = await log.claim((await begin(log, 1)).run_id)
            released = await begin(log, 2)
            await log.release(released)
            await log.writer(await begin(log, 3)).commit(DONE)
        async with asyncio.timeout(DEADLINE_S), self.open() as log:
            adopted = [(claim.run_id, claim.fence) for claim in await log.adopt(10)]
            assert adopted == [(held.run_id, held.fence + 1), (released.run_id, released.fence + 1)]
            assert list(await log.adopt(10)) == []


async def _everything(log: Log, run: str) -> tuple[object, ...]:
    return (await log.head(run), await frames_of(log, run), await log.state(run), await log.find(run))
