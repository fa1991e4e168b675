"""Which replica answers a request. Pure.

An engine keeps what it has computed for a prompt's beginning, so requests with the same beginning go to the same
replica, their home. Which one that is follows from the names alone (rendezvous hashing: Thaler and Ravishankar, "Using
name-based mappings to increase hit rates", 1998): a replica that leaves takes only its own requests with it, and finds
them again.

The home of a busy thread must not be where everybody waits. So no replica is given more than `spill` times its share of
what is under way, as in "Consistent Hashing with Bounded Loads" (Mirrokni, Thorup and Zadimoghaddam, arXiv:1608.01350);
what is over goes to the next in that request's own order, the same one each time. What has gone there has its beginning
there now, and a thread grows: so whoever answered it last is asked before its home.
"""

import hashlib
import math
from collections.abc import Sequence

import msgspec

from headrace.engine.port import ModelRequest

SPILL = 1.25
"""The paper's bound: at 1.25 a replica is asked at most a quarter more than its share."""

_PREFIX = 1024  # characters of a prompt that tell it from others


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What one replica is doing: `active` answers of `size` that it may give at once, and `room` for so many more
    requests of the kind that is to be placed, which may be none although there are places. `last` is when it answered
    one with this prefix, in seconds, -inf if that is not known."""

    name: str
    active: int
    size: int
    room: int
    last: float = -math.inf


def choose(loads: Sequence[Load], prefix: str, *, spill: float = SPILL) -> str | None:
    """The name of the replica that a request with this prefix goes to, None if nobody has room."""
    open_to_it = [load for load in loads if load.room > 0]
    if not open_to_it:
        return None
    under_way = 1 + sum(load.active for load in loads)
    places = sum(load.size for load in loads)
    within = [load for load in open_to_it if load.active < math.ceil(spill * under_way * load.size / places)]
    if within:
        return max(within, key=lambda load: (load.last, _rank(prefix, load.name))).name
    return min(open_to_it, key=lambda load: load.active / load.size).name


def _rank(prefix: str, name: str) -> bytes:
    return hashlib.blake2b(f"{name}\0{prefix}".encode("utf-8", "surrogatepass"), digest_size=8).digest()


def prefix_of(request: ModelRequest) -> str:
    """What requests have in common whose prompts begin alike: the session, or else the beginning itself."""
    if request.session is not None:
        return f"session {request.session}"
    if request.prompt is not None:
        return f"prompt {request.prompt[:_PREFIX]}"
    tools = " ".join(tool.name for tool in request.tools)
    said = "\n".join(f"{message.role}: {message.content[:_PREFIX]}" for message in request.messages[:2])
    return f"messages {tools}\n{said[:_PREFIX]}"
