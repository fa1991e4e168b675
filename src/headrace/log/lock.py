"""One process owns the files of a log. The kernel drops the lock when that process dies, however it dies."""

import fcntl
import os
from pathlib import Path

from headrace.errors import LogLocked


def hold(path: Path) -> int:
    """Lock a directory by its lock file; close the descriptor to let go. Raises LogLocked."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise LogLocked(
            f"another process (pid {holder}) has the log in {path.parent}",
            hint="Stop that server, or give this one another data directory.",
        ) from exc
    os.ftruncate(fd, 0)
    os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    return fd
