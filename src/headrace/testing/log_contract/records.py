"""Records: their numbers, what is read, and appends at an expected head."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headrace.errors import SeqConflict, UnknownRun
from headrace.events import CancelRequested, Event, InputReceived, SteerReceived, TextDelta, ToolCallStarted
from headrace.log.ports import Claim, Log
from headrace.testing.log_contract.runs import DONE, Contract, begin, promise, run_id, text_of, words
from headrace.wire.codec import encode_record


class RecordsContract(Contract):
    @promise
    async def test_seqs_start_at_1_and_have_no_gaps(self, log: Log) -> None:
        claim = await begin(log)
        writer = log.writer(claim)
        for number in range(5):
            writer.emit(TextDelta(text=str(number)))
            await log.append(claim.run_id, [SteerReceived(steer_id=str(number), text="x")])
            writer.emit(TextDelta(text="!"))
            await log.append(claim.run_id, words("a", "b"), fence=claim.fence)
        await writer.commit(DONE)
        records = await log.read(claim.run_id)
        assert [record.seq for record in records] == list(range(1, len(records) + 1))
        assert len(records) == 1 + 5 * 5 + 1

    @promise
    async def test_a_read_gives_back_what_an_append_returned(self, log: Log) -> None:
        claim = await begin(log)
        events: list[Event] = [TextDelta(text="ä\n\u2028"), ToolCallStarted(call_id="c", name="n", turn=1), DONE]
        appended = await log.append(claim.run_id, events, fence=claim.fence)
        assert [record.event for record in appended] == events
        assert list(await log.read(claim.run_id, after=1)) == list(appended)
        frames = await log.read_frames(claim.run_id, after=1)
        assert list(frames) == [encode_record(record.seq, record.ts, record.event) for record in appended]

    @promise
    async def test_reads_are_bounded_by_after_and_limit(self, log: Log) -> None:
        claim = await begin(log)
        await log.append(claim.run_id, words(*"abcdefgh"), fence=claim.fence)
        assert text_of(await log.read(claim.run_id, after=3, limit=4)) == "cdef"
        assert list(await log.read(claim.run_id, after=9)) == []
        assert list(await log.read(claim.run_id, after=1000)) == []
        assert list(await log.read(claim.run_id, limit=0)) == []
        assert len(await log.read(claim.run_id, after=0)) == 9

    @promise
    async def test_an_unknown_run_is_an_error_everywhere(self, log: Log) -> None:
        nowhere = run_id(404)
        claim = Claim(run_id=nowhere, fence=1)
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: log.read(nowhere),
            lambda: log.read_frames(nowhere),
            lambda: log.head(nowhere),
            lambda: log.state(nowhere),
            lambda: log.claim(nowhere),
            lambda: log.append(nowhere, [CancelRequested()]),
            lambda: log.append(nowhere, [DONE], fence=1, key="k"),
        ]
        for call in calls:
            with pytest.raises(UnknownRun):
                await call()
        with pytest.raises(UnknownRun):
            log.writer(claim).emit(DONE)
        assert await log.find(nowhere) is None
        assert log.recent(nowhere, 0) is None

    @promise
    async def test_an_append_at_another_head_is_refused_and_writes_nothing(self, log: Log) -> None:
        claim = await begin(log)
        for wrong in (0, 2):
            with pytest.raises(SeqConflict):
                await log.append(claim.run_id, words("no"), fence=claim.fence, expected_seq=wrong)
        assert (await log.head(claim.run_id)).seq == 1
        await log.append(claim.run_id, words("yes"), fence=claim.fence, expected_seq=1)
        assert (await log.head(claim.run_id)).seq == 2

    @promise
    async def test_of_two_appends_expecting_the_same_head_one_wins(self, log: Log) -> None:
        claim = await begin(log)
        answers = [InputReceived(input_id="i", value=value) for value in (1, 2)]
        results = await asyncio.gather(
            *(log.append(claim.run_id, [answer], expected_seq=1) for answer in answers), return_exceptions=True
        )
        assert sorted(isinstance(result, SeqConflict) for result in results) == [False, True]
        assert (await log.head(claim.run_id)).seq == 2
