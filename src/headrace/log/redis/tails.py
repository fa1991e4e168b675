"""The growing ends of runs that other workers have, for the followers here.

However many follow a run, a wake-up costs one read: it fills the run's tail, and all are served from that. A follower
that is behind what the tail holds reads for itself until it has come up to it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from headrace.errors import LogUnavailable
from headrace.log.live import subscribed, tell
from headrace.wire.codec import frame_seq

log = logging.getLogger(__name__)

KEPT_FRAMES = 2000
"""Frames that a tail holds at most; the oldest go."""

READ_FRAMES = 1000

ReadAfter = Callable[[str, int, int], Awaitable[list[bytes]]]
"""(run_id, after, limit) → frames."""


class Tail:
    """Frames `first` to `head` of a run. Where it begins is not known (`head` None) until somebody has read."""

    __slots__ = ("filling", "first", "frames", "head", "stirred", "subscribers")

    def __init__(self) -> None:
        self.subscribers: dict[int, Callable[[], None]] = {}
        self.frames: list[bytes] = []
        self.first = 1
        self.head: int | None = None
        self.filling = False
        self.stirred = False

    def recent(self, after: int, limit: int) -> Sequence[bytes] | None:
        """See `ports.Wakeups.recent`."""
        if self.head is None or after < self.first - 1:
            return None
        start = after + 1 - self.first
        return self.frames[start : start + limit] if after < self.head else ()

    def place(self, head: int) -> bool:
        """Somebody has read up to this head: go on from there. False if it was known where to go on."""
        if self.head is not None:
            return False
        self.first, self.head = head + 1, head
        return True

    def extend(self, frames: list[bytes]) -> None:
        assert self.head is not None
        if frame_seq(frames[0]) != self.head + 1:  # trimmed, or rebuilt: what lies between cannot be read
            self.frames, self.first = [], frame_seq(frames[0])
        self.frames += frames
        self.head = frame_seq(frames[-1])
        if len(self.frames) > KEPT_FRAMES:
            self.first += len(self.frames) - KEPT_FRAMES
            del self.frames[:-KEPT_FRAMES]


class Tails:
    """`wanted` and `unwanted` are told of runs that begin and cease to be followed here. `group` runs the reads."""

    def __init__(
        self,
        group: asyncio.TaskGroup,
        read: ReadAfter,
        *,
        wanted: Callable[[str], None],
        unwanted: Callable[[str], None],
    ) -> None:
        self._group = group
        self._read = read
        self._wanted = wanted
        self._unwanted = unwanted
        self._tails: dict[str, Tail] = {}

    def get(self, run_id: str) -> Tail | None:
        return self._tails.get(run_id)

    def subscribe(self, run_id: str, wake: Callable[[], None]) -> Callable[[], None]:
        tail = self._tails.get(run_id)
        if tail is None:
            tail = self._begin(run_id)
        stop = subscribed(tail.subscribers, wake)

        def unsubscribe() -> None:
            stop()
            self._prune(run_id)

        return unsubscribe

    def _prune(self, run_id: str) -> None:
        tail = self._tails.get(run_id)
        if tail is not None and not tail.subscribers:
            self._end(run_id)

    def _begin(self, run_id: str) -> Tail:
        tail = self._tails[run_id] = Tail()
        self._wanted(run_id)
        return tail

    def _end(self, run_id: str) -> None:
        del self._tails[run_id]
        self._unwanted(run_id)

    def hand_over(self, run_id: str) -> dict[int, Callable[[], None]]:
        """This process has the run now: its followers go to the run in memory."""
        tail = self._tails.get(run_id)
        if tail is None:
            return {}
        self._end(run_id)
        return tail.subscribers

    def take_over(self, run_id: str, subscribers: dict[int, Callable[[], None]]) -> None:
        """This process has the run no more: its followers come here, and read again."""
        if subscribers:
            self._begin(run_id).subscribers = subscribers
            tell(subscribers.values(), f"run {run_id} has moved")

    def stir(self, run_id: str, head: int | None = None) -> None:
        """There may be more of a run, up to `head` if that is known."""
        tail = self._tails.get(run_id)
        if tail is None or tail.head is None or (head is not None and head <= tail.head):
            return
        tail.stirred = True
        if not tail.filling:
            tail.filling = True
            self._group.create_task(self._fill(run_id, tail))

    def stir_all(self) -> None:
        for run_id in tuple(self._tails):
            self._prune(run_id)  # one that was taken over does not know when its last follower goes
            self.stir(run_id)

    async def _fill(self, run_id: str, tail: Tail) -> None:
        try:
            while tail.stirred:
                tail.stirred = False
                assert tail.head is not None
                frames = await self._read(run_id, tail.head, READ_FRAMES)
                if frames:
                    tail.extend(frames)
                    tail.stirred |= len(frames) == READ_FRAMES
                    tell(tail.subscribers.values(), f"run {run_id} has grown")
        except LogUnavailable:
            pass  # it is stirred again once Redis is back
        except Exception:
            log.exception("run %s cannot be read on", run_id)
        finally:
            tail.filling = False
