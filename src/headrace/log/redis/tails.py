"""The growing ends of runs that other workers have, for the followers here.

However many follow a run, a wake-up costs one read: it fills the run's tail, and all are served from that. A follower
that is behind what the tail holds reads for itself until it has come up to it.
"""

from collections.abc import Callable, Sequence
from functools import partial

from headrace.log.live import subscribed, tell
from headrace.log.redis.stored import StoredRuns, frames_of
from headrace.log.redis.wire import Answer
from headrace.wire.codec import frame_seq

KEPT_FRAMES = 2000
"""Frames that a tail holds at most; the oldest go."""

READ_FRAMES = 1000


class Tail:
    """Frames `first` to `head` of a run. Where it begins is not known (`head` None) until somebody has read."""

    __slots__ = ("announced", "filling", "first", "frames", "head", "subscribers")

    def __init__(self) -> None:
        self.subscribers: dict[int, Callable[[], None]] = {}
        self.frames: list[bytes] = []
        self.first = 1
        self.head: int | None = None
        self.announced = 0
        self.filling = False

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
        self.frames, self.first, self.head, self.announced = [], head + 1, head, head
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
    """`wanted` and `unwanted` are told of runs that begin and cease to be followed here."""

    def __init__(self, stored: StoredRuns, *, wanted: Callable[[str], None], unwanted: Callable[[str], None]) -> None:
        self._stored = stored
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

    def stir(self, run_id: str) -> None:
        """There may be more of a run: ask how far it is."""
        tail = self._tails.get(run_id)
        if tail is not None and tail.head is not None:
            self._stored.ask_head(run_id).add_done_callback(partial(self._told, run_id))

    def stir_all(self) -> None:
        for run_id in tuple(self._tails):
            self._prune(run_id)  # one that was taken over does not know when its last follower goes
            self.stir(run_id)

    def _told(self, run_id: str, answer: Answer) -> None:
        if not answer.cancelled() and answer.exception() is None and answer.result() is not None:
            self.announce(run_id, int(answer.result()))

    def announce(self, run_id: str, head: int) -> None:
        """A run has grown up to `head`: read what is missing. While that is under way, more may be announced."""
        tail = self._tails.get(run_id)
        if tail is not None and tail.head is not None:
            tail.announced = max(tail.announced, head)
            if not tail.filling and tail.head < tail.announced:
                self._ask(run_id, tail, tail.head)

    def _ask(self, run_id: str, tail: Tail, after: int) -> None:
        tail.filling = True
        answer = self._stored.entries(run_id, after, READ_FRAMES)
        answer.add_done_callback(partial(self._answered, run_id, tail))

    def _answered(self, run_id: str, tail: Tail, answer: Answer) -> None:
        tail.filling = False
        if answer.cancelled() or answer.exception() is not None or tail.head is None:
            return  # the log is closing; or Redis answered what it never should, and the next announcement tries again
        frames = frames_of(answer.result())
        if frames:
            tail.extend(frames)
        elif tail.head < tail.announced:
            tail.head = None  # what was announced is gone by now: followers read for themselves what is left
        tell(tail.subscribers.values(), f"run {run_id} has grown")
        if tail.head is not None and tail.head < tail.announced:
            self._ask(run_id, tail, tail.head)
