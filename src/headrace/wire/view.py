"""How one follower sees a run: which types of records, and its text cut by which policy.

The cursor is not the view's: an id that is sent is the last seq covered, whatever was left out before it.
"""

from collections.abc import Iterable, Sequence

from headrace.errors import InvalidRequest
from headrace.events import EVENT_TYPES, TERMINAL_TYPES
from headrace.wire.chunking import merge_adjacent, parse_policy
from headrace.wire.codec import frame_type


class View:
    """One follower's own, since a policy may hold text back. No `types` means all; the terminal record always comes.

    `plain` says that a single frame passes as it is, so whoever has just one need not ask.

    Raises:
        InvalidRequest: not a policy, or not an event type.
    """

    __slots__ = ("_chunker", "_merges", "_types", "plain")

    def __init__(self, policy: str = "auto", types: Iterable[str] = ()) -> None:
        self._chunker = parse_policy(policy)
        self._merges = policy == "auto"
        self._types = _wanted(types)
        self.plain = self._chunker is None and self._types is None

    @property
    def due(self) -> float | None:
        """When `flush` must be called at the latest (the caller's clock), None while nothing is held."""
        return None if self._chunker is None else self._chunker.due

    def frames(self, frames: Sequence[bytes], now: float) -> Sequence[bytes]:
        """Take the log's frames, give back those that are to be sent now."""
        if self._types is not None:
            frames = [frame for frame in frames if frame_type(frame) in self._types]
        if self._chunker is not None:
            return self._chunker.feed(frames, now)
        return merge_adjacent(frames) if self._merges and len(frames) > 1 else frames

    def flush(self) -> list[bytes]:
        """What is held, now."""
        return [] if self._chunker is None else self._chunker.flush()


def _wanted(types: Iterable[str]) -> frozenset[str] | None:
    names = frozenset(types)
    unknown = names - EVENT_TYPES.keys()
    if unknown:
        raise InvalidRequest(
            f"types names {min(unknown)[:64]!r}, which is no event type.", hint="PROTOCOL.md lists the types."
        )
    return names | TERMINAL_TYPES if names else None
