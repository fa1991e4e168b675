"""Disks that misbehave, for the journal's `disk` argument: one that is full, one that fails, one that kills us."""

import errno
import os
import signal
import sqlite3
from pathlib import Path

from headrace.log.disk import Disk


class FullDisk(Disk):
    """Holds `capacity` bytes of files under `directory`, counting only what is written through it."""

    def __init__(self, directory: Path, capacity: int | None = None) -> None:
        self.directory = directory
        self.capacity = capacity

    def write(self, fd: int, data: bytes | memoryview) -> int:
        room = len(data) if self.capacity is None else self.capacity - self.used()
        if room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(fd, data[:room])

    def used(self) -> int:
        mine = (*self.directory.glob("*.journal"), self.directory / "ballast")
        return sum(path.stat().st_size for path in mine if path.exists())


class FailingDisk(Disk):
    """Raises EIO from every call named in `failing`, e.g. {"write", "truncate"}; `partly` bytes are written first."""

    def __init__(self) -> None:
        self.failing: set[str] = set()
        self.partly = 0

    def _check(self, call: str) -> None:
        if call in self.failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def open(self, path: Path) -> int:
        self._check("open")
        return super().open(path)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        if "write" in self.failing and self.partly:
            super().write(fd, data[: self.partly])
        self._check("write")
        return super().write(fd, data)

    def sync(self, fd: int) -> None:
        self._check("sync")
        super().sync(fd)

    def truncate(self, fd: int, size: int) -> None:
        self._check("truncate")
        super().truncate(fd, size)

    def unlink(self, path: Path) -> None:
        self._check("unlink")
        super().unlink(path)

    def sync_directory(self, path: Path) -> None:
        self._check("sync_directory")
        super().sync_directory(path)

    def commit(self, connection: sqlite3.Connection) -> None:
        if "commit" in self.failing:
            raise sqlite3.OperationalError("disk I/O error")
        super().commit(connection)


class DyingDisk(Disk):
    """Kills its own process with SIGKILL after `steps` steps.

    Before and after every call is a step; with `bytewise` every byte of a write is one.
    """

    def __init__(self, steps: int, *, bytewise: bool = True) -> None:
        self.steps = steps
        self.bytewise = bytewise

    def _step(self) -> None:
        if self.steps == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.steps -= 1

    def open(self, path: Path) -> int:
        self._step()
        return super().open(path)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        if not self.bytewise:
            self._step()
            written = super().write(fd, data)
            self._step()
            return written
        if len(data) >= self.steps:
            super().write(fd, data[: self.steps])
            os.kill(os.getpid(), signal.SIGKILL)
        self.steps -= len(data)
        return super().write(fd, data)

    def sync(self, fd: int) -> None:
        self._step()
        super().sync(fd)
        self._step()

    def truncate(self, fd: int, size: int) -> None:
        self._step()
        super().truncate(fd, size)
        self._step()

    def unlink(self, path: Path) -> None:
        self._step()
        super().unlink(path)
        self._step()

    def sync_directory(self, path: Path) -> None:
        self._step()
        super().sync_directory(path)
        self._step()

    def commit(self, connection: sqlite3.Connection) -> None:
        self._step()
        super().commit(connection)
        self._step()
