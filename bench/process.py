"""A measured server as a process: started, found ready, its CPU time and memory read from /proc, stopped.

CPU is utime + stime and memory is PSS, each of the server and all its children; what the load client costs is not in
it. Where there are two cores, servers get the first and the client the last, so that they do not push each other.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.rivals import ROOT

_TICKS = os.sysconf("SC_CLK_TCK")
READY_S = 60.0


class ServerFailed(RuntimeError):
    """It did not come up; the message has the end of its log."""


def children(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in task.read_text().split():
                found += children(int(child))
    return found


def cpu_seconds(pids: Sequence[int]) -> float:
    return sum(_cpu_ticks(pid) for pid in pids) / _TICKS


def _cpu_ticks(pid: int) -> int:
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])
    return 0


def pss_kb(pids: Sequence[int]) -> float:
    return float(sum(_pss_kb(pid) for pid in pids))


def _pss_kb(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0


def tcp_memory_kb() -> float:
    """What the kernel holds in TCP buffers, on the whole machine."""
    for line in Path("/proc/net/sockstat").read_text().splitlines():
        if line.startswith("TCP:"):
            words = line.split()
            return int(words[words.index("mem") + 1]) * os.sysconf("SC_PAGE_SIZE") / 1024
    return 0.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def all_cores() -> set[int]:
    return os.sched_getaffinity(0)


def server_core() -> set[int]:
    return {min(os.sched_getaffinity(0))}


def client_core() -> set[int]:
    return {max(os.sched_getaffinity(0))}


@contextlib.contextmanager
def on_core(cores: set[int]) -> Iterator[None]:
    """Children started inside inherit these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def precedence(wanted: bool) -> Iterator[None]:
    """This process and what it starts inside are scheduled before the machine's other work (SCHED_RR; needs root).

    Raises PermissionError for those who may not.
    """
    if not wanted:
        yield
        return
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def environment() -> dict[str, str]:
    """No setting of the caller's may reach a measured server."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HEADRACE", "OPENAI", "AGNO"))}
    return kept | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "AGNO_TELEMETRY": "false"}


@contextlib.contextmanager
def running(
    command: Sequence[str], port: int, log: Path, env: dict[str, str], *, cores: set[int], within: float = READY_S
) -> Iterator[int]:
    """The pid of a server that answers on `port`. Raises ServerFailed if it does not `within` so many seconds."""
    with log.open("wb") as out, on_core(cores):
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=log.parent, env=env, start_new_session=True)
    try:
        _wait_until_ready(process, port, log, within)
        yield process.pid
    finally:
        _stop(process)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder on the disk the repository is on (a tmpfs would make durability look free)."""
    home = ROOT / ".cache" / "bench"
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _wait_until_ready(process: "subprocess.Popen[bytes]", port: int, log: Path, within: float) -> None:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    tail = log.read_text(errors="replace")[-2000:]
    raise ServerFailed(f"{' '.join(process.args)} is not serving:\n{tail}")  # type: ignore[arg-type]


def _stop(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
