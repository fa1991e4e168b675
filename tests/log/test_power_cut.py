"""A power cut at any moment: what was synced is there, and of the rest nothing. The worst that a disk may do."""

import asyncio
import threading
from itertools import pairwise
from pathlib import Path
from typing import Literal

from harness import run_async, until
from headrace.errors import UnknownRun
from headrace.events import TextDelta
from headrace.log.disk import Disk
from headrace.log.journal import JournalLog
from headrace.log.ports import Claim
from headrace.testing.log_contract import DONE, begin, text_of

WORDS = [f"{number} " for number in range(20)]
SEGMENT_BYTES = 1000
"""So small that the words take several segments: their names have to be synced too."""


class Memory(Disk):
    """Knows what has reached the disk: how much of each file, and which names. The rest is the system's memory.

    `held` is set while a sync waits for `go_on`.
    """

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.go_on.set()
        self.held = False
        self._paths: dict[int, Path] = {}
        self._synced: dict[Path, int] = {}
        self._named: set[Path] = set()

    def open(self, path: Path) -> int:
        fd = super().open(path)
        self._paths[fd] = path
        return fd

    def sync(self, fd: int) -> None:
        self.held = not self.go_on.is_set()
        self.go_on.wait(10)
        super().sync(fd)
        self._synced[self._paths[fd]] = self._paths[fd].stat().st_size

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self._named |= set(path.iterdir())

    def after_a_cut(self, place: Path) -> Path:
        """A folder as the disk has it now."""
        place.mkdir()
        for path in self._named & set(self._synced):
            (place / path.name).write_bytes(path.read_bytes()[: self._synced[path]])
        return place


def opened(path: Path, durability: Literal["journal", "fsync"], disk: Disk | None = None) -> JournalLog:
    return JournalLog(path, durability=durability, disk=disk, segment_bytes=SEGMENT_BYTES, tidy_every_s=3600)


async def said(path: Path, claim: Claim, durability: Literal["journal", "fsync"]) -> str | None:
    """The run's text after a restart; None if there is no run. What there is goes on."""
    async with opened(path, durability) as log:
        try:
            text = text_of(await log.read(claim.run_id))
        except UnknownRun:
            return None
        await log.writer(await log.claim(claim.run_id)).commit(DONE)
        assert (await log.head(claim.run_id)).closed
        return text


def test_with_fsync_a_power_cut_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = Memory()
        async with opened(tmp_path / "log", "fsync", disk) as log:
            claim = await begin(log)
            writer = log.writer(claim)
            for number, word in enumerate(WORDS, 1):
                await writer.commit(TextDelta(text=word))
                kept = disk.after_a_cut(tmp_path / f"after-{number}")
                assert await said(kept, claim, "fsync") == "".join(WORDS[:number])
        assert len(list((tmp_path / "log").glob("*.journal"))) > 1

    run_async(scenario())


def test_with_fsync_a_power_cut_between_write_and_sync_loses_what_nobody_was_shown(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = Memory()
        async with opened(tmp_path / "log", "fsync", disk) as log:
            claim = await begin(log)
            disk.go_on.clear()
            stored = asyncio.create_task(log.writer(claim).commit(TextDelta(text="written, not synced")))
            await until(lambda: disk.held)
            assert not log.recent(claim.run_id, 1)
            kept = disk.after_a_cut(tmp_path / "after")
            disk.go_on.set()
            await stored
            assert log.recent(claim.run_id, 1)
        assert await said(kept, claim, "fsync") == ""

    run_async(scenario())


def test_with_journal_a_power_cut_loses_the_end_and_the_rest_goes_on(tmp_path: Path) -> None:
    """However much the system had written back by itself: the later records are lost, never one in between."""

    async def scenario() -> None:
        async with opened(tmp_path / "log", "journal", Memory()) as log:
            claim = await begin(log)
            for word in WORDS[:6]:
                await log.writer(claim).commit(TextDelta(text=word))
        (segment, *_) = sorted((tmp_path / "log").glob("*.journal"))
        whole = segment.read_bytes()
        texts = []
        for size in range(0, len(whole), 7):
            place = tmp_path / f"after-{size}"
            place.mkdir()
            (place / segment.name).write_bytes(whole[:size])
            texts.append(await said(place, claim, "journal"))
        assert texts[0] is None  # not even the run is known any more
        kept = [text for text in texts if text is not None]
        assert all(later.startswith(earlier) for earlier, later in pairwise(kept))
        assert len(set(kept)) > 3

    run_async(scenario())


def test_with_journal_nothing_is_synced(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = Memory()
        async with opened(tmp_path / "log", "journal", disk) as log:
            claim = await begin(log)
            await log.writer(claim).commit(TextDelta(text="acknowledged"))
            kept = disk.after_a_cut(tmp_path / "after")
            assert await said(kept, claim, "journal") is None

    run_async(scenario())
