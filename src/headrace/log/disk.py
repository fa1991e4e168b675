"""Every system call by which the journal changes the disk, in one place, so that a test can fail or die at each."""

import os
import sqlite3
from pathlib import Path


class Disk:
    """Plain calls. All raise OSError (sqlite3.Error for `commit`)."""

    def open(self, path: Path) -> int:
        """For appending; made when it is not there."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        return os.write(fd, data)

    def sync(self, fd: int) -> None:
        os.fsync(fd) if not hasattr(os, "fdatasync") else os.fdatasync(fd)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def sync_directory(self, path: Path) -> None:
        """Make names in a directory durable."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def commit(self, connection: sqlite3.Connection) -> None:
        connection.commit()


def write_all(disk: Disk, fd: int, data: bytes) -> None:
    """Write it all: one call, more only where the disk takes less at once."""
    written = disk.write(fd, data)
    if written < len(data):
        rest = memoryview(data)[written:]
        while rest:
            rest = rest[disk.write(fd, rest) :]
