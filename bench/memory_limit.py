"""A limit on the memory of a measured server and all that it starts.

A cgroup limits all of them together, but for pages of files that somebody else has read before, which are not counted
as theirs; so whoever uses it also compares their PSS. Making one takes root, as a rule. Where none may be made,
`ulimit -v` limits the addresses of each process by itself, which is more than the memory that it uses.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

_GOES_WITHIN = 20.0


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """`prefix` goes before the command of a server. `group` is its cgroup, None where there is none."""

    text: str
    prefix: tuple[str, ...]
    group: Path | None = None

    @property
    def kills(self) -> int:
        """How many processes the kernel has ended because of it."""
        if self.group is None:
            return 0
        told = (self.group / name for name in ("memory.events", "memory.oom_control"))
        fields = [line.split() for path in told if path.exists() for line in path.read_text().splitlines()]
        return sum(int(count) for name, count in fields if name == "oom_kill")


@contextlib.contextmanager
def memory_limit(size: int) -> Iterator[Limit]:
    """`size` is in bytes. When it is left, whatever is still in the cgroup is ended."""
    group = _made(size)
    if group is None:
        text = f"ulimit -v: {size >> 20} MiB of addresses for each process by itself (no cgroup may be made here)"
        yield Limit(text=text, prefix=("sh", "-c", f'ulimit -v {size >> 10} && exec "$@"', "sh"))
        return
    try:
        text = f"cgroup {group.name}: {size >> 20} MiB for all processes together"
        enter = ("sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs"))
        yield Limit(text=text, prefix=enter, group=group)
    finally:
        _empty(group)
        group.rmdir()


def groups_of(cgroup: str, root: Path) -> Iterator[tuple[Path, str]]:
    """Where a cgroup for us may be made, and the name of its limit; `cgroup` is the text of /proc/self/cgroup.

    The first version allows groups in our own; in the second a group with processes has none, so it lies beside ours.
    """
    for line in cgroup.splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            yield root / "memory" / path.lstrip("/"), "memory.limit_in_bytes"
        elif not controllers:
            yield (root / path.lstrip("/")).parent if path != "/" else root, "memory.max"


def _made(size: int) -> Path | None:
    root = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError):
        for parent, name in groups_of(Path("/proc/self/cgroup").read_text(), root):
            if (group := _made_in(parent, name, size)) is not None:
                return group
    return None


def _made_in(parent: Path, name: str, size: int) -> Path | None:
    group = parent / f"headrace-bench-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        return None
    try:
        (group / name).write_text(str(size))
        with contextlib.suppress(OSError):  # where there is no accounting of swap
            (group / "memory.swap.max").write_text("0")
    except OSError:  # the controller is not on in there
        group.rmdir()
        return None
    return group


def _empty(group: Path) -> None:
    deadline = time.monotonic() + _GOES_WITHIN
    while pids := (group / "cgroup.procs").read_text().split():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"{group} still has processes {pids} after {_GOES_WITHIN:.0f} s")
        time.sleep(0.02)
