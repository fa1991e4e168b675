"""Who may write: fences, requests of clients, and the end after which nothing comes."""

import pytest

from headrace.errors import RunEnded, StaleFence
from headrace.events import CancelRequested, InputReceived, RunErrored, SteerReceived, TextDelta
from headrace.log.ports import Head, Log, NewRun
from headrace.testing.log_contract.runs import DONE, Contract, begin, promise, run_id, started, text_of, words


class OwnersContract(Contract):
    @promise
    async def test_a_stale_fence_is_refused_and_writes_nothing(self, log: Log) -> None:
        old = await begin(log)
        writer = log.writer(old)
        new = await log.claim(old.run_id)
        assert new.fence == old.fence + 1
        with pytest.raises(StaleFence):
            writer.emit(TextDelta(text="no"))
        with pytest.raises(StaleFence):
            await writer.commit()
        with pytest.raises(StaleFence):
            await log.append(old.run_id, words("no"), fence=old.fence)
        with pytest.raises(StaleFence):
            log.writer(old).emit(TextDelta(text="no"))
        await log.writer(new).commit(TextDelta(text="yes"))
        assert text_of(await log.read(old.run_id)) == "yes"

    @promise
    async def test_a_claim_between_emit_and_the_end_of_the_tick_keeps_the_emit_in_order(self, log: Log) -> None:
        old = await begin(log)
        log.writer(old).emit(TextDelta(text="old "))
        new = await log.claim(old.run_id)
        await log.writer(new).commit(TextDelta(text="new"))
        assert text_of(await log.read(old.run_id)) == "old new"

    @promise
    async def test_a_fence_that_was_never_given_out_is_refused(self, log: Log) -> None:
        created = await log.create(NewRun(run_id=run_id(1)), started())
        assert created.claim is None
        for fence in (0, 1, 7):
            if fence:
                with pytest.raises(StaleFence):
                    await log.append(created.run_id, words("no"), fence=fence)
        assert (await log.claim(created.run_id)).fence == 1

    @promise
    async def test_without_a_fence_only_requests_of_clients_are_taken(self, log: Log) -> None:
        claim = await begin(log)
        for event in (TextDelta(text="no"), DONE, RunErrored(code="x", message="y")):
            with pytest.raises(StaleFence):
                await log.append(claim.run_id, [CancelRequested(), event])
        requests = [CancelRequested(), SteerReceived(steer_id="s", text="t"), InputReceived(input_id="i", value=1)]
        assert len(await log.append(claim.run_id, requests)) == 3
        assert (await log.head(claim.run_id)).seq == 4

    @promise
    async def test_nothing_follows_the_terminal_record(self, log: Log) -> None:
        claim = await begin(log)
        writer = log.writer(claim)
        writer.emit(DONE)
        with pytest.raises(RunEnded):
            writer.emit(TextDelta(text="no"))
        with pytest.raises(RunEnded):
            await log.append(claim.run_id, [CancelRequested()])
        await writer.commit()
        for event in (DONE, RunErrored(code="x", message="y"), TextDelta(text="no")):
            with pytest.raises(RunEnded):
                await log.append(claim.run_id, [event], fence=claim.fence)
            with pytest.raises(RunEnded):
                writer.emit(event)
        with pytest.raises(RunEnded):
            await log.claim(claim.run_id)
        assert await log.head(claim.run_id) == Head(seq=2, first=1, closed=True)

    @promise
    async def test_an_append_with_a_terminal_record_before_its_end_writes_nothing(self, log: Log) -> None:
        claim = await begin(log)
        with pytest.raises(RunEnded):
            await log.append(claim.run_id, [*words("a"), DONE, *words("b")], fence=claim.fence)
        assert await log.head(claim.run_id) == Head(seq=1, first=1, closed=False)
