"""The state of a run, what retention leaves of it, and the lists of runs."""

import asyncio

from headrace.events import SteerReceived, TextDelta
from headrace.log.ports import Log
from headrace.state import fold, initial
from headrace.testing.log_contract.runs import DEADLINE_S, DONE, Contract, begin, promise, run_id


class StatesContract(Contract):
    @promise
    async def test_the_state_is_the_fold_of_the_records_at_every_moment(self, log: Log) -> None:
        claim = await begin(log)
        writer = log.writer(claim)
        for number in range(40):
            writer.emit(TextDelta(text=f"{number} "))
            if number % 7 == 0:
                await log.append(claim.run_id, [SteerReceived(steer_id=str(number), text="x")])
                assert await log.state(claim.run_id) == fold(await log.read(claim.run_id), initial(claim.run_id))
        await writer.commit(DONE)
        state = await log.state(claim.run_id)
        assert state == fold(await log.read(claim.run_id), initial(claim.run_id))
        assert (state.status, state.seq) == ("completed", (await log.head(claim.run_id)).seq)

    def test_a_long_run_is_trimmed_from_the_front_and_its_state_covers_what_went(self) -> None:
        asyncio.run(self._trimmed())

    async def _trimmed(self) -> None:
        async with asyncio.timeout(DEADLINE_S), self.open(max_records=50) as log:
            claim = await begin(log)
            writer = log.writer(claim)
            for number in range(500):
                writer.emit(TextDelta(text=f"{number} "))
                if number % 20 == 0:
                    await writer.commit()
            await writer.commit()
            head = await log.head(claim.run_id)
            records = await log.read(claim.run_id)
            state = await log.state(claim.run_id)
            assert head.seq == 501
            assert 50 <= len(records) <= 100
            assert [record.seq for record in records] == list(range(head.first, 502))
            assert state.text == "".join(f"{number} " for number in range(500))
            assert log.recent(claim.run_id, 0) is None
            assert await log.read(claim.run_id, after=head.first + 3) == records[4:]

    @promise
    async def test_a_tenant_sees_its_own_runs_newest_first(self, log: Log) -> None:
        for number in range(1, 8):
            await begin(log, number, tenant="ab"[number % 2], thread_id=f"t{number % 3}")
        await begin(log, 100, tenant="c")
        ids = [row.run_id for row in await log.runs("b")]
        assert ids == [run_id(7), run_id(5), run_id(3), run_id(1)]
        assert {row.tenant for row in await log.runs("b")} == {"b"}
        assert [row.run_id for row in await log.runs("b", limit=2)] == ids[:2]
        assert [row.run_id for row in await log.runs("b", before=ids[1], limit=2)] == ids[2:]
        assert [row.run_id for row in await log.runs("b", thread_id="t1")] == [run_id(7), run_id(1)]
        assert list(await log.runs("nobody")) == []

    @promise
    async def test_a_row_says_how_the_run_stands(self, log: Log) -> None:
        claim = await begin(log, tenant="x")
        row = await log.find(claim.run_id)
        assert row is not None
        assert (row.tenant, row.agent, row.thread_id, row.status, row.ended_ts) == ("x", "demo", "t1", "running", None)
        await log.writer(claim).commit(TextDelta(text="a"), DONE)
        row = await log.find(claim.run_id)
        assert row is not None
        assert (row.status, row.seq, row.title) == ("completed", 3, "hello")
        assert row.ended_ts is not None
        assert list(await log.runs("x")) == [row]
