"""A look at an event loop from inside its process, again and again: how late it comes back.

It is asked every 2 ms to come back, and each look says how late it came, how long its thread stood in line for a core
meanwhile, and how long it computed. Neither of the latter two is in it when the machine below gave the core to somebody
else: the clock went on, and Linux ran neither this thread nor another in its place. uvloop, which a server has, keeps
time in whole milliseconds, so that a look at its loop may be late by up to one with nobody to blame. Looking takes some
10 µs of each 2 ms.
"""

import asyncio
import signal
import time
from pathlib import Path
from types import TracebackType

import msgspec

EVERY = 0.002  # seconds between two looks
LOOKS = "BENCH_LOOKS"
"""The variable that names the file where a measured server writes what it saw."""


class Look(msgspec.Struct, frozen=True, array_like=True):
    """`at` is in seconds, the rest in milliseconds. `waited` is the time in line for a core (proc(5), schedstat; 0
    where there is none)."""

    at: float
    late: float
    waited: float
    computed: float


class LoopProbe:
    """Looks at the loop that enters it. It holds what it saw, 200 bytes a look, until it is left."""

    def __init__(self) -> None:
        self.looks: list[Look] = []
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> "LoopProbe":
        self._loop = asyncio.get_running_loop()
        self._ask_again()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _ask_again(self) -> None:
        self._waited, self._computed = _waited_ms(), time.thread_time()
        self._due = time.perf_counter() + EVERY
        self._timer = self._loop.call_later(EVERY, self._came_back)

    def _came_back(self) -> None:
        now = time.perf_counter()
        late, computed = (now - self._due) * 1e3, (time.thread_time() - self._computed) * 1e3
        self.looks.append(Look(now, max(0.0, late), _waited_ms() - self._waited, computed))
        self._ask_again()

    def write(self, path: Path) -> None:
        """All of the looks, there as a whole or not at all."""
        whole = path.with_suffix(".part")
        whole.write_bytes(msgspec.json.encode(self.looks))
        whole.replace(path)


def write_when_asked(probe: LoopProbe, path: Path) -> None:
    """Whenever this process gets SIGUSR1."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, probe.write, path)


def _waited_ms() -> float:
    """How long this thread has stood in line for a core in its life."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_bytes().split()[1]) / 1e6
    except OSError:
        return 0.0
