"""Every execution of a tool, written down by the tool itself before it does anything else. Standard library only.

One line each, in one O_APPEND write: whole or not at all, also when the process dies with the next instruction.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "CHAOS_LEDGER"
"""The environment variable that tells a server's tools where the file is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """`label` is the planned call's, `call_id` the system's own name for it, `at` Unix time in seconds."""

    label: str
    tool: str
    call_id: str
    pid: int
    at: float


def write_down(tool: str, label: str, call_id: str) -> None:
    """`call_id` is "-" where a system gives its tools none."""
    line = f"{label} {tool} {call_id} {os.getpid()} {time.time():.6f}\n"
    file = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def read_ledger(path: Path) -> list[Execution]:
    """In the order in which they were written; none when no tool has run."""
    if not path.exists():
        return []
    rows = (line.split(" ") for line in path.read_text().splitlines())
    return [
        Execution(label=label, tool=tool, call_id=call_id, pid=int(pid), at=float(at))
        for label, tool, call_id, pid, at in rows
    ]
