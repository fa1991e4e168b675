"""The journal's files: append to the last, begin a new one when it is large, delete those nobody needs.

A write is whole or it never was: what a failed one left is cut off again before anything else is written. A segment is
deleted as a whole once no run that is still outside the archive has an entry in it.
"""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from headrace.log.disk import Disk, write_all
from headrace.log.entries import MAGIC

OLD = 4
"""How many segments back a run may hold one before it is carried over."""

_SUFFIX = ".journal"


def segment_path(directory: Path, number: int) -> Path:
    return directory / f"{number:010d}{_SUFFIX}"


def segment_numbers(directory: Path) -> list[int]:
    """The segments there are, oldest first."""
    return sorted(int(path.stem) for path in directory.glob(f"*{_SUFFIX}") if path.stem.isdecimal())


class Segments:
    """`write` may run in another thread; everything else belongs to the loop's."""

    def __init__(self, directory: Path, *, disk: Disk, segment_bytes: int, sync: bool) -> None:
        self._directory = directory
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._sync = sync
        self._pins: dict[int, set[str]] = {}
        self._fd: int | None = None
        self._size = 0
        self._torn = False
        self._spent = False
        self.current = 0

    def start(self, number: int, size: int) -> None:
        """Go on at byte `size` of a segment; what lies behind is cut off."""
        self._open(number)
        assert self._fd is not None
        self._disk.truncate(self._fd, size)
        self._size = size
        if self._sync:
            self._disk.sync(self._fd)  # the former process may have died between write and sync

    def write(self, data: bytes) -> int:
        """Append one batch and return the segment it is in. Raises OSError; then nothing of it stays."""
        self._repair()
        if self._spent or self._size >= self._segment_bytes:
            self._open(self.current + 1)
        if self._size == 0:
            data = MAGIC + data
        assert self._fd is not None
        self._torn = True
        try:
            write_all(self._disk, self._fd, data)
            if self._sync:
                self._sync_now(self._fd)
        except OSError:
            with contextlib.suppress(OSError):
                self._repair()
            raise
        self._torn = False
        self._size += len(data)
        return self.current

    def _sync_now(self, fd: int) -> None:
        try:
            self._disk.sync(fd)
        except OSError:
            self._spent = True  # after a failed sync nobody knows what a later one of the same file means
            raise

    def _repair(self) -> None:
        if self._torn:
            assert self._fd is not None
            self._disk.truncate(self._fd, self._size)
            self._torn = False

    def _open(self, number: int) -> None:
        fd = self._disk.open(segment_path(self._directory, number))
        try:
            if self._sync:
                self._disk.sync_directory(self._directory)
        except OSError:
            os.close(fd)
            raise
        self.close()
        self._fd, self._size, self._spent = fd, 0, False
        self.current = number

    def pin(self, number: int, run_id: str) -> None:
        """This run needs that segment."""
        self._pins.setdefault(number, set()).add(run_id)

    def unpin(self, run_ids: Iterable[str]) -> None:
        gone = set(run_ids)
        for pinned in self._pins.values():
            pinned -= gone

    def pinned(self, number: int) -> list[str]:
        return sorted(self._pins.get(number, ()))

    def old(self) -> list[int]:
        """Segments that are needed though several newer ones are full."""
        return [n for n in sorted(self._pins) if self._pins[n] and n <= self.current - OLD]

    def unneeded(self) -> list[int]:
        return [n for n in segment_numbers(self._directory) if n < self.current and not self._pins.get(n)]

    def oldest(self) -> int:
        return min(segment_numbers(self._directory), default=self.current)

    def delete(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._disk.unlink(segment_path(self._directory, number))
            self._pins.pop(number, None)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
