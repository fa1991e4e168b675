"""A file that only takes up room. When the disk is full it goes, so that running runs can still be ended honestly."""

import contextlib
import os
from pathlib import Path

from headrace.log.disk import Disk, write_all

BALLAST_BYTES = 1024 * 1024


class Ballast:
    def __init__(self, path: Path, *, disk: Disk, size: int = BALLAST_BYTES) -> None:
        self._path = path
        self._disk = disk
        self._size = size

    def release(self) -> None:
        with contextlib.suppress(OSError):
            self._disk.unlink(self._path)

    def restore(self) -> bool:
        """Take up the room again. False while there is none."""
        try:
            if self._path.exists() and self._path.stat().st_size == self._size:
                return True
            self._fill()
        except OSError:
            self.release()
            return False
        return True

    def _fill(self) -> None:
        fd = self._disk.open(self._path)
        try:
            self._disk.truncate(fd, 0)
            write_all(self._disk, fd, bytes(2 * self._size))  # more than the ballast's own return would free
            self._disk.truncate(fd, self._size)
        finally:
            os.close(fd)
