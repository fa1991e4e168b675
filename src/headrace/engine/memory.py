"""The memory that this machine, its container and its user leave to a model that runs here, in bytes.

Who is refused would have been killed by the kernel, or would have dragged the machine down.
"""

import resource
from pathlib import Path

import msgspec

from headrace.errors import ConfigError

_ADDRESSES = 300 << 20  # that a process maps and never touches: code, stacks
_UNLIMITED = 1 << 60


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """`weights` are mapped from the file, `cache` holds what was said, `working` is all the rest."""

    weights: int
    cache: int
    working: int

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.working

    def __add__(self, other: "Need") -> "Need":
        return Need(
            weights=self.weights + other.weights,
            cache=self.cache + other.cache,
            working=self.working + other.working,
        )


def require_fits(model: str, wanted: Need, room: int | None, *, smallest_kv: str = "q4_0") -> None:
    """Raises ConfigError when it does not fit into `room`; None is for a machine that does not say."""
    if room is None or wanted.total <= room:
        return
    parts = f"weights {_mib(wanted.weights)}, context {_mib(wanted.cache)}, the rest {_mib(wanted.working)}"
    smaller = f"engine.context_tokens, engine.slots or engine.kv={smallest_kv}" if wanted.cache > wanted.weights else ""
    raise ConfigError(
        f"{model} needs at least {_mib(wanted.total)} of memory ({parts}), and {_mib(room)} are free.",
        hint=f"Lower {smaller}." if smaller else "Take a smaller model or quantisation, or allow more memory.",
    )


def room(root: Path = Path("/")) -> int | None:
    """What this process and its children may still take: the machine's, the container's and the user's limit."""
    free = [_field(root / "proc/meminfo", "MemAvailable:"), *_cgroups(root)]
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        free.append(max(0, soft - _ADDRESSES))
    return min((one for one in free if one is not None), default=None)


def _cgroups(root: Path) -> list[int | None]:
    """The room in each group that this process is in, of either version."""
    rooms: list[int | None] = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            top, limit, used = root / "sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            top, limit, used = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        place = top / path.strip("/")
        groups = [group for group in (place, *place.parents) if group.is_relative_to(top)]
        rooms += [_room_in(group, limit, used) for group in groups]
    return rooms


def _room_in(group: Path, limit: str, used: str) -> int | None:
    most, taken = _text(group / limit).strip(), _text(group / used).strip()
    if not most.isdigit() or not taken.isdigit() or int(most) >= _UNLIMITED:
        return None
    given_back = _field(group / "memory.stat", "inactive_file", unit=1) or 0
    return max(0, int(most) - int(taken) + given_back)


def _field(path: Path, name: str, *, unit: int = 1024) -> int | None:
    for line in _text(path).splitlines():
        word, _, rest = line.partition(" ")
        if word == name:
            return int(rest.split()[0]) * unit
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
