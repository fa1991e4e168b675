"""How a model that runs here shares the cores with the event loop and with whatever else they do."""

import ctypes
import os
import platform
import struct
from pathlib import Path

_SPINS = 2_000  # about 0.1 ms; 500 to 5,000 do as well
_SLICE_NS = 400_000  # what a turn of the loop for a token or two takes; 100,000 to 1,000,000 do as well
_SCHED_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}  # sched_setattr, sched_getattr: glibc has them since 2.41
_SCHED_ATTR = struct.Struct("IIQiIQQQ")  # size, policy, flags, nice, priority, runtime, deadline, period
_RESET_ON_FORK = 0x01
_NICENESS = 10  # without it the event loop waited up to 20 ms for its core, with it 5 to 12


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Cores this process may use: its affinity, and a container's quota where there is one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = cgroup.read_text().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):
        return cores


def model_threads(cores: int) -> int:
    """How many threads compute a model: both of two cores, for an event loop is idle most of the time; of more than
    two, one is left to it."""
    return cores if cores <= 2 else cores - 1


def model_environment() -> dict[str, str]:
    """Of a process whose threads wait for each other some hundred times a token.

    By default GNU's OpenMP lets a thread spin for milliseconds before it sleeps, so that where other work takes a core,
    the thread that could go on and the one that waits for it take turns: two threads become slower than one. Without
    spinning, falling asleep costs more than the second thread brings. In between both are had: `scripts/bench engines
    --only threads`. A value of the user's own is kept.
    """
    return {"GOMP_SPINCOUNT": str(_SPINS), **os.environ}


def give_way() -> None:
    """Let the event loop come first where both want a core: this process computes without a pause. The terminal's
    Ctrl-C is for the server, which then ends this one.

    It stays in the session of whoever started it: Linux may share the cores among sessions first, and only within one
    by niceness (sched(7), "The autogroup feature"). So other programs get no more than their share.
    """
    os.setpgid(0, 0)
    os.nice(_NICENESS)


def come_first() -> bool:
    """Let the thread that calls this, an event loop's, have a core as soon as it has something to do. What it starts
    is not concerned. False where the system cannot, and nothing has changed.

    Linux lets a thread that computes end its slice, 1.4 ms on two cores and 2.8 on many, whatever its niceness, unless
    the one that wakes up has a shorter slice: sched_setattr(2), `sched_runtime` of a normal thread, since Linux 6.12.
    Before, one turn of the loop in a hundred began 2 to 4 ms late while a model computed, with it 1 ms.
    """
    calls = _SCHED_CALLS.get(platform.machine())
    if calls is None or platform.system() != "Linux" or struct.calcsize("P") != 8:
        return False
    set_attributes, get_attributes = calls
    system_call = ctypes.CDLL(None).syscall
    attributes = ctypes.create_string_buffer(_SCHED_ATTR.size)
    if system_call(get_attributes, 0, attributes, _SCHED_ATTR.size, 0) != 0:
        return False
    size, policy, flags, nice, priority, slice_ns, deadline, period = _SCHED_ATTR.unpack(attributes.raw)
    if policy != os.SCHED_OTHER or nice < 0 or not slice_ns:
        return False  # before 6.12 there is no slice; what is started from here would lose a niceness below 0
    wanted = (size, policy, flags | _RESET_ON_FORK, nice, priority, _SLICE_NS, deadline, period)
    return bool(system_call(set_attributes, 0, _SCHED_ATTR.pack(*wanted), 0) == 0)
