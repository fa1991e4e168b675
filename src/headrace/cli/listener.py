"""Who listens on a port, as far as /proc tells. On systems without it nobody is found."""

import os
from pathlib import Path

_LISTEN = "0A"


def listener(port: int, proc: Path = Path("/proc")) -> str | None:
    """`name (pid 123)` of the process that listens on a TCP port, None if it cannot be found."""
    inodes = _listening_inodes(port, proc)
    if not inodes:
        return None
    for process in proc.iterdir():
        if process.name.isdecimal() and _holds(process, inodes):
            return f"{_name(process)} (pid {process.name})"
    return None


def _listening_inodes(port: int, proc: Path) -> set[str]:
    """The sockets in state LISTEN on this port, by inode."""
    found: set[str] = set()
    for table in ("net/tcp", "net/tcp6"):
        try:
            lines = (proc / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found


def _holds(process: Path, inodes: set[str]) -> bool:
    try:
        return any(_target(fd) in inodes for fd in (process / "fd").iterdir())
    except OSError:
        return False  # another user's process, or one that has just ended


def _target(fd: Path) -> str:
    try:
        return os.readlink(fd).removeprefix("socket:[").removesuffix("]")
    except OSError:
        return ""


def _name(process: Path) -> str:
    try:
        command = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return "a process"
    words = [word.decode("utf-8", "replace") for word in command if word]
    return " ".join([Path(words[0]).name, *words[1:4]]) if words else "a process"
