"""Full and failing disks: a batch that could not be stored never happened, and runs can still be ended honestly."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import pytest

from harness import run_async, until
from headrace.errors import LogUnavailable, UnknownRun
from headrace.events import CancelRequested, Record, RunErrored, RunFinished, TextDelta
from headrace.log.disk import Disk
from headrace.log.journal import JournalLog
from headrace.log.ports import Claim, Head, NewRun, RunInfo, Writer
from headrace.log.retention import Retention
from headrace.testing.disk import FailingDisk, FullDisk
from headrace.testing.log_contract import Told, begin, run_id, started, text_of, unfinished

DURABILITIES: tuple[Literal["journal", "fsync"], ...] = ("journal", "fsync")
Durability = Literal["journal", "fsync"]
FAILED = RunErrored(code="log_unavailable", message="the disk is full", retryable=True)

pytestmark = pytest.mark.parametrize("durability", DURABILITIES)


@asynccontextmanager
async def opened(
    path: Path, durability: Durability, disk: Disk | None = None, *, probe_every_s: float = 0.01
) -> AsyncIterator[JournalLog]:
    log = JournalLog(path, durability=durability, disk=disk, probe_every_s=probe_every_s, tidy_every_s=3600)
    async with log:
        yield log


@pytest.mark.parametrize("partly", [0, 1, 40])
@pytest.mark.parametrize("call", ["write", "sync"])
def test_nothing_of_a_failed_write_is_seen_and_its_writers_are_broken(
    tmp_path: Path, durability: Durability, call: str, partly: int
) -> None:
    if (durability, call) == ("journal", "sync"):
        pytest.skip("journal does not sync")

    async def main() -> None:
        disk = FailingDisk()
        async with opened(tmp_path, durability, disk) as log:
            claim, other = await begin(log, 1), await begin(log, 2)
            writer, idle = log.writer(claim), log.writer(other)
            await writer.commit(TextDelta(text="before "))
            disk.failing, disk.partly = {call}, partly
            writer.emit(TextDelta(text="lost"))
            results = await asyncio.gather(
                log.append(claim.run_id, [CancelRequested()], key="k"),
                log.create(NewRun(run_id=run_id(3), key="x"), started()),
                return_exceptions=True,
            )
            assert [type(result) for result in results] == [LogUnavailable, LogUnavailable]
            assert not _writable(log)
            assert await log.head(claim.run_id) == Head(seq=2, first=1, closed=False)
            assert await log.find(run_id(3)) is None
            with pytest.raises(LogUnavailable):
                writer.emit(TextDelta(text="no"))
            with pytest.raises(LogUnavailable):
                await writer.commit()
            disk.failing = set()
            await until(lambda: _probed(log))
            assert _writable(log)
            await idle.commit(TextDelta(text="not touched"))
            await log.append(claim.run_id, [CancelRequested()], key="k")
            await log.writer(claim).commit(TextDelta(text="after"))
            assert (await log.create(NewRun(run_id=run_id(3), key="x"), started())).new
            await log.append(claim.run_id, [FAILED], fence=claim.fence)
        async with opened(tmp_path, durability) as log:
            assert text_of(await log.read(claim.run_id)) == "before after"
            assert [record.seq for record in await log.read(claim.run_id)] == [1, 2, 3, 4, 5]
            assert (await log.head(other.run_id)).seq == 2

    run_async(main())


def test_a_run_that_could_not_be_stored_is_lost_by_whoever_began_it_and_was_never_there(
    tmp_path: Path, durability: Durability
) -> None:
    async def main() -> None:
        disk, owner, new = FailingDisk(), Told(), NewRun(run_id=run_id(1), key="k")
        async with opened(tmp_path, durability, disk) as log:

            def begin_to_work(claim: Claim) -> None:
                log.subscribe_owner(claim.run_id, owner)
                log.writer(claim).emit(TextDelta(text="lost"))

            disk.failing = {"write"}
            with pytest.raises(LogUnavailable):
                await log.create(new, started(), begun=begin_to_work)
            assert (owner.heard.get_nowait(), owner.heard.qsize()) == ("lost", 0)
            assert await log.find(new.run_id) is None
            with pytest.raises(UnknownRun):
                await log.head(new.run_id)
            disk.failing = set()
            await until(lambda: _probed(log))
            assert (await log.create(new, started())).new
        async with opened(tmp_path, durability) as log:
            assert len(await log.read(new.run_id)) == 1

    run_async(main())


def test_on_a_full_disk_a_run_that_ends_in_its_first_steps_is_refused_as_any_other_new_one(
    tmp_path: Path, durability: Durability
) -> None:
    async def main() -> None:
        disk, owner, new = FailingDisk(), Told(), NewRun(run_id=run_id(1), key="k")
        async with opened(tmp_path, durability, disk, probe_every_s=3600) as log:
            other = await begin(log, 2)
            disk.failing = {"write"}
            for _ in range(2):  # the first one finds the disk full, the second looks whether it still is
                with pytest.raises(LogUnavailable):
                    await log.append(other.run_id, [CancelRequested()])
            disk.failing = set()  # from now on there is room for last words
            ends: list[asyncio.Task[Sequence[Record]]] = []

            def begin_and_end(claim: Claim) -> None:
                log.subscribe_owner(claim.run_id, owner)
                ends.append(asyncio.ensure_future(log.append(claim.run_id, [FAILED], fence=claim.fence)))

            results = await asyncio.gather(
                log.create(new, started(), begun=begin_and_end),
                log.append(other.run_id, [FAILED], fence=other.fence),
                return_exceptions=True,
            )
            assert isinstance(results[0], LogUnavailable)
            with pytest.raises(LogUnavailable):
                await ends[0]
            assert (owner.heard.get_nowait(), owner.heard.qsize()) == ("lost", 0)
            assert (await log.head(other.run_id)).closed
        async with opened(tmp_path, durability) as log:
            assert await log.find(new.run_id) is None
            assert (await log.create(new, started())).new

    run_async(main())


def test_nobody_is_shown_a_run_that_is_begun_but_not_stored(tmp_path: Path, durability: Durability) -> None:
    async def main() -> None:
        async with opened(tmp_path, durability) as log:
            shown: list[asyncio.Task[Sequence[RunInfo]]] = []
            await log.create(
                NewRun(run_id=run_id(1)),
                started(),
                begun=lambda _: shown.append(asyncio.ensure_future(log.runs("default"))),
            )
            assert not await shown[0]
            assert await unfinished(log) == [run_id(1)]

    run_async(main())


def test_the_first_steps_of_a_new_run_are_one_write(tmp_path: Path, durability: Durability) -> None:
    async def main() -> None:
        disk = CountingDisk()
        async with opened(tmp_path, durability, disk) as log:
            steps: list[asyncio.Task[None]] = []
            go_on = asyncio.Event()

            async def work(writer: Writer) -> None:
                writer.emit(TextDelta(text="a"))
                await asyncio.sleep(0)
                writer.emit(TextDelta(text="b"))
                await go_on.wait()
                await writer.commit(TextDelta(text="c"))

            before = disk.writes
            await log.create(
                NewRun(run_id=run_id(1)),
                started(),
                begun=lambda claim: steps.append(asyncio.ensure_future(work(log.writer(claim)))),
            )
            assert text_of(await log.read(run_id(1))) == "ab"
            assert disk.writes == before + 1
            go_on.set()
            await steps[0]
            assert text_of(await log.read(run_id(1))) == "abc"

    run_async(main())


class CountingDisk(Disk):
    writes = 0

    def write(self, fd: int, data: bytes | memoryview) -> int:
        self.writes += 1
        return super().write(fd, data)


def test_what_a_failed_write_left_is_cut_off_before_the_next_even_if_that_failed_too(
    tmp_path: Path, durability: Durability
) -> None:
    async def main() -> None:
        disk = FailingDisk()
        async with opened(tmp_path, durability, disk) as log:
            claim = await begin(log)
            disk.failing, disk.partly = {"write", "truncate"}, 30
            for _ in range(3):
                with pytest.raises(LogUnavailable):
                    await log.append(claim.run_id, [TextDelta(text="lost")], fence=claim.fence)
            disk.failing = set()
            await until(lambda: _probed(log))
            await log.append(claim.run_id, [TextDelta(text="kept")], fence=claim.fence)
        async with opened(tmp_path, durability) as log:
            assert text_of(await log.read(claim.run_id)) == "kept"

    run_async(main())


def _writable(log: JournalLog) -> bool:
    return log.writable


def _probed(log: JournalLog) -> bool:
    return log._probe()


def test_a_claim_that_could_not_be_stored_changes_no_owner(tmp_path: Path, durability: Durability) -> None:
    async def main() -> None:
        disk = FailingDisk()
        async with opened(tmp_path, durability, disk) as log:
            claim = await begin(log)
            disk.failing = {"write"}
            with pytest.raises(LogUnavailable):
                await log.claim(claim.run_id)
            disk.failing = set()
            await until(lambda: _probed(log))
            await log.append(claim.run_id, [TextDelta(text="still mine")], fence=claim.fence)
            assert (await log.claim(claim.run_id)).fence == claim.fence + 1

    run_async(main())


def test_on_a_full_disk_running_runs_can_still_be_ended(tmp_path: Path, durability: Durability) -> None:
    async def main() -> None:
        disk = FullDisk(tmp_path)
        async with opened(tmp_path, durability, disk) as log:
            claims = [await begin(log, number) for number in range(1, 21)]
            writers = [log.writer(claim) for claim in claims]
            disk.capacity = disk.used() + 500
            with pytest.raises(LogUnavailable):
                await fill(log, claims[0].run_id, claims[0].fence)
            assert not _writable(log)
            for writer in writers[1:]:
                with pytest.raises(LogUnavailable):
                    await writer.commit(TextDelta(text="x" * 1000))
            with pytest.raises(LogUnavailable):
                await log.create(NewRun(run_id=run_id(99)), started())
            await log.append(claims[0].run_id, [FAILED], fence=claims[0].fence)
            await asyncio.gather(*(log.append(claim.run_id, [FAILED], fence=claim.fence) for claim in claims[1:]))
            assert await unfinished(log) == []
            assert not _writable(log)
            disk.capacity = None
            await until(lambda: _probed(log))
            assert _writable(log)
            assert (await log.create(NewRun(run_id=run_id(99)), started())).new
        async with opened(tmp_path, durability) as log:
            assert [(await log.state(claim.run_id)).status for claim in claims] == ["failed"] * 20
            assert await unfinished(log) == [run_id(99)]

    run_async(main())


async def fill(log: JournalLog, run: str, fence: int) -> None:
    while True:
        await log.append(run, [TextDelta(text="x" * 100)], fence=fence)


def test_a_disk_that_has_room_again_is_noticed_without_a_write(tmp_path: Path, durability: Durability) -> None:
    async def main() -> None:
        disk = FullDisk(tmp_path)
        async with opened(tmp_path, durability, disk) as log:
            claim = await begin(log)
            disk.capacity = disk.used() + 500
            with pytest.raises(LogUnavailable):
                await fill(log, claim.run_id, claim.fence)
            disk.capacity = None
            async with asyncio.timeout(10):
                while not _writable(log):
                    await log.tidy()

    run_async(main())


def test_an_archive_that_cannot_be_written_loses_nothing_and_is_tried_again(
    tmp_path: Path, durability: Durability, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        disk = FailingDisk()
        retention = Retention(seal_after_s=0.0)
        log = JournalLog(tmp_path, durability=durability, disk=disk, retention=retention, tidy_every_s=0.001)
        async with log:
            disk.failing = {"commit"}
            claim = await begin(log)
            await log.writer(claim).commit(RunFinished(status="completed"))
            await until(lambda: "housekeeping" in caplog.text)
            assert log.recent(claim.run_id, 0)
            disk.failing = set()
            await until(lambda: log.recent(claim.run_id, 0) is None)
            assert len(await log.read(claim.run_id)) == 2

    with caplog.at_level(logging.ERROR, "headrace"):
        run_async(main())


def test_a_closed_log_refuses(tmp_path: Path, durability: Durability) -> None:
    async def main() -> None:
        async with opened(tmp_path, durability) as log:
            claim = await begin(log)
            writer = log.writer(claim)
            writer.emit(TextDelta(text="in time"))
        with pytest.raises(LogUnavailable):
            writer.emit(TextDelta(text="late"))
        with pytest.raises(LogUnavailable):
            await log.append(claim.run_id, [CancelRequested()])
        async with opened(tmp_path, durability) as log:
            assert text_of(await log.read(claim.run_id)) == "in time"

    run_async(main())
