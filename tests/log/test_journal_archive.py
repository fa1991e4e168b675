"""Ended runs leave memory and the journal, age, and are forgotten; nobody who reads them notices where they are."""

from pathlib import Path

import pytest

from harness import run_async
from headrace.errors import RunEnded, UnknownRun
from headrace.events import CancelRequested, RunFinished, TextDelta
from headrace.log.journal import JournalLog
from headrace.log.memory import MemoryLog
from headrace.log.ports import Claim, Head, Log, NewRun
from headrace.log.retention import Retention
from headrace.testing.log_contract import begin, frames_of, run_id, started, unfinished
from headrace.wire.codec import frame_seq

DONE = RunFinished(status="completed", output="done")


class Time:
    """Unix milliseconds that move when told to."""

    def __init__(self) -> None:
        self.ms = 1_764_424_800_000

    def __call__(self) -> int:
        return self.ms

    def pass_s(self, seconds: float) -> None:
        self.ms += int(seconds * 1000)


def _journal(path: Path, time: Time, *, segment_bytes: int = 2000, **kept: float) -> JournalLog:
    retention = Retention(**{"seal_after_s": 30.0, "frames_age_s": 1000.0, "state_age_s": 5000.0, **kept})  # type: ignore[arg-type]
    return JournalLog(path, clock=time, retention=retention, tidy_every_s=3600, segment_bytes=segment_bytes)


async def _ended(log: Log, number: int, *, records: int = 3) -> Claim:
    claim = await begin(log, number)
    writer = log.writer(claim)
    for step in range(records - 2):
        writer.emit(TextDelta(text=f"{step} "))
    await writer.commit(DONE)
    return claim


def _segments(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.glob("*.journal"))


async def _seen(log: Log, run: str) -> list[object]:
    return [await log.head(run), await frames_of(log, run), await log.state(run), await log.find(run)]


def test_a_sealed_run_reads_as_before_and_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        time = Time()
        async with _journal(tmp_path, time) as log:
            claim = await _ended(log, 1, records=1203)
            live = await begin(log, 2)
            before = [await _seen(log, claim.run_id), await log.runs("default")]
            time.pass_s(29)
            await log.tidy()
            assert log.recent(claim.run_id, 0)
            time.pass_s(1)
            await log.tidy()
            assert log.recent(claim.run_id, 0) is None
            assert [await _seen(log, claim.run_id), await log.runs("default")] == before
            for after in (0, 1, 499, 500, 501, 998, 1000, 1201, 1202, 1203, 9999):
                frames = await log.read_frames(claim.run_id, after=after, limit=700)
                assert [frame_seq(frame) for frame in frames] == list(range(after + 1, min(after + 701, 1204)))
        async with _journal(tmp_path, time) as log:
            assert [await _seen(log, claim.run_id), await log.runs("default")] == before
            assert await unfinished(log) == [live.run_id]

    run_async(main())


def test_a_segment_goes_when_all_its_runs_are_sealed_and_not_before(tmp_path: Path) -> None:
    async def main() -> None:
        time = Time()
        async with _journal(tmp_path, time) as log:
            for number in range(2, 25):
                await _ended(log, number, records=10)
            live = await begin(log, 1)
            held = _segments(tmp_path)[-1]
            for number in range(25, 30):
                await _ended(log, number, records=10)
            time.pass_s(30)
            await log.tidy()
            assert [_segments(tmp_path)[0], len(_segments(tmp_path))] == [held, 2]
            await log.writer(live).commit(DONE)
            time.pass_s(30)
            await log.tidy()
            assert _segments(tmp_path)[0] > held
        async with _journal(tmp_path, time) as log:
            assert len(await log.runs("default")) == 29
            assert len(await log.read(run_id(7))) == 10

    run_async(main())


def test_a_run_that_waits_for_long_holds_no_old_segment(tmp_path: Path) -> None:
    """It is carried over into the current one, with its fence, its keys and what of it was trimmed."""

    async def main() -> None:
        time = Time()
        async with _journal(tmp_path, time, segment_bytes=20_000, max_records=8) as log:
            waiting, trimmed = await begin(log, 1), await begin(log, 2)
            kept = await log.append(waiting.run_id, [CancelRequested()], key="k")
            writer = log.writer(await log.claim(trimmed.run_id))
            for step in range(20):
                await writer.commit(TextDelta(text=f"{step} "))
            before = [await _seen(log, run) for run in (waiting.run_id, trimmed.run_id)]
            oldest = _segments(tmp_path)[0]
            for number in range(3, 60):
                await _ended(log, number, records=8)
                await log.append((await begin(log, number + 100)).run_id, [TextDelta(text="x" * 2000), DONE], fence=1)
            assert len(_segments(tmp_path)) > 6
            time.pass_s(30)
            await log.tidy()
            assert len(_segments(tmp_path)) == 1
            assert _segments(tmp_path)[0] > oldest
            assert [await _seen(log, run) for run in (waiting.run_id, trimmed.run_id)] == before
            await log.writer(waiting).commit(TextDelta(text="on"))
        async with _journal(tmp_path, time, segment_bytes=20_000, max_records=8) as log:
            assert await _seen(log, trimmed.run_id) == before[1]
            assert list(await log.append(waiting.run_id, [CancelRequested()], key="k")) == list(kept)
            assert [record.seq for record in await log.read(waiting.run_id)] == [1, 2, 3]
            assert (await log.claim(trimmed.run_id)).fence == 3
            await log.append(waiting.run_id, [DONE], fence=1)

    run_async(main())


@pytest.mark.parametrize("left", [slice(None), slice(0, 1), slice(1, None), slice(1, 3)])
def test_a_run_carried_over_is_whole_whichever_old_segments_a_crash_left_behind(tmp_path: Path, left: slice) -> None:
    async def main() -> None:
        time = Time()
        async with _journal(tmp_path, time, segment_bytes=20_000) as log:
            waiting = await begin(log, 1)
            for number in range(2, 60):
                if number % 3 == 0:
                    await log.append(waiting.run_id, [TextDelta(text=str(number))], fence=1)
                await log.append((await begin(log, number)).run_id, [TextDelta(text="x" * 3000), DONE], fence=1)
            before = await _seen(log, waiting.run_id)
            old = {name: (tmp_path / name).read_bytes() for name in _segments(tmp_path)}
            time.pass_s(30)
            await log.tidy()
            assert len(_segments(tmp_path)) < len(old)
        for name in list(old)[:-1][left]:
            (tmp_path / name).write_bytes(old[name])
        async with _journal(tmp_path, time, segment_bytes=20_000) as log:
            assert await _seen(log, waiting.run_id) == before
            assert await unfinished(log) == [waiting.run_id]
            assert len(await log.runs("default", limit=100)) == 59
            await log.append(waiting.run_id, [DONE], fence=1)

    run_async(main())


def test_records_age_but_the_terminal_one_and_the_state_stay_until_the_run_is_forgotten(tmp_path: Path) -> None:
    async def main() -> None:
        time = Time()
        async with _journal(tmp_path, time) as log:
            claim = await _ended(log, 1, records=700)
            state = await log.state(claim.run_id)
            time.pass_s(1001)
            await log.tidy()
            assert await log.head(claim.run_id) == Head(seq=700, first=700, closed=True)
            assert [record.event for record in await log.read(claim.run_id)] == [DONE]
            assert await log.state(claim.run_id) == state
            time.pass_s(4000)
            await log.tidy()
            with pytest.raises(UnknownRun):
                await log.state(claim.run_id)
            assert list(await log.runs("default")) == []
        async with _journal(tmp_path, time) as log:
            assert await log.find(claim.run_id) is None

    run_async(main())


def test_a_forgotten_run_does_not_come_back_from_a_segment_that_a_live_run_holds(tmp_path: Path) -> None:
    async def main() -> None:
        time = Time()
        async with _journal(tmp_path, time) as log:
            live = await begin(log, 1)
            await _ended(log, 2)
            time.pass_s(6000)
            await log.tidy()
            assert await log.find(run_id(2)) is None
        async with _journal(tmp_path, time) as log:
            assert await log.find(run_id(2)) is None
            assert await unfinished(log) == [live.run_id]

    run_async(main())


def test_a_live_run_does_not_age(tmp_path: Path) -> None:
    async def main() -> None:
        time = Time()
        for log in (_journal(tmp_path, time), MemoryLog(clock=time, tidy_every_s=3600)):
            async with log:
                claim = await begin(log)
                await log.writer(claim).commit(TextDelta(text="a"))
                time.pass_s(1e8)
                await log.tidy()
                assert len(await log.read(claim.run_id)) == 2

    run_async(main())


def test_a_sealed_run_is_still_known_by_its_keys_and_refuses_what_an_ended_run_refuses(tmp_path: Path) -> None:
    async def main() -> None:
        time = Time()
        new = NewRun(run_id=run_id(1), key="k", fingerprint="f")
        async with _journal(tmp_path, time) as log:
            claim = (await log.create(new, started(), claim=True)).claim
            assert claim is not None
            cancelled = await log.append(claim.run_id, [CancelRequested()], key="c")
            writer = log.writer(claim)
            await writer.commit(DONE)
            time.pass_s(30)
            await log.tidy()
            again = await log.create(NewRun(run_id=run_id(2), key="k", fingerprint="f"), started())
            assert (again.run_id, again.new) == (run_id(1), False)
            assert not (await log.create(new, started())).new
            assert list(await log.append(claim.run_id, [CancelRequested()], key="c")) == list(cancelled)
            for refused in (log.append(claim.run_id, [CancelRequested()]), log.claim(claim.run_id)):
                with pytest.raises(RunEnded):
                    await refused
            with pytest.raises(RunEnded):
                writer.emit(DONE)
            time.pass_s(6000)
            await log.tidy()
            assert (await log.create(NewRun(run_id=run_id(3), key="k", fingerprint="g"), started())).new

    run_async(main())


def test_ended_runs_that_take_too_much_room_are_sealed_early_the_oldest_first(tmp_path: Path) -> None:
    async def main() -> None:
        async with _journal(tmp_path, Time(), ended_bytes=3000) as log:
            for number in (1, 2, 3):
                await _ended(log, number, records=30)
            await log.tidy()
            assert [log.recent(run_id(number), 0) is None for number in (1, 2, 3)] == [True, True, False]

    run_async(main())


def test_in_memory_ended_runs_age_and_make_room_too() -> None:
    async def main() -> None:
        time = Time()
        retention = Retention(ended_bytes=3000, frames_age_s=1000, state_age_s=5000)
        async with MemoryLog(clock=time, retention=retention, tidy_every_s=3600) as log:
            for number in (1, 2, 3):
                await _ended(log, number, records=30)
            await log.tidy()
            assert [(await log.head(run_id(number))).first for number in (1, 2, 3)] == [30, 30, 1]
            time.pass_s(1000)
            await log.tidy()
            assert (await log.head(run_id(3))).first == 30
            assert (await log.state(run_id(3))).text.startswith("0 1 2 ")
            time.pass_s(4000)
            await log.tidy()
            assert list(await log.runs("default")) == []

    run_async(main())
