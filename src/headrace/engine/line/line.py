"""Who waits for a place, and who is next. Pure.

Whoever has a person waiting goes before those who have not. Among equals each session gets its turn, however many
requests it has sent (start-time fair queueing: Goyal, Vin and Cheng, 1996): a request's tag is one more than that of
the session's request before it, and the smallest tag is next. Work that may wait is never starved: whenever
`patient_every` others have gone before it, the one that has waited longest is next.
"""

from bisect import insort
from collections.abc import Iterator
from typing import Generic, TypeVar

from headrace.errors import EngineOverloaded

MAX_WAITING = 1000
"""Requests; more are refused, since nobody waits for so long."""
PATIENT_EVERY = 8
_PATIENT_PART = 0.75


class Waiter:
    """A request that wants a place. `tried` are the replicas that have failed it; `holds` is the one it was given, and
    with `on_trial` it is the one request that this replica is given after its failures."""

    def __init__(self, *, priority: int, session: str | None, prefix: str) -> None:
        self.priority = priority
        self.session = session
        self.prefix = prefix
        self.tried: set[str] = set()
        self.holds: str | None = None
        self.on_trial = False
        self.tag = 0
        self.number = 0

    @property
    def patient(self) -> bool:
        return self.priority > 0


W = TypeVar("W", bound=Waiter)


class Line(Generic[W]):
    def __init__(self, *, patient_every: int = PATIENT_EVERY) -> None:
        self._patient_every = patient_every
        self._waiting: list[W] = []  # the next one first
        self._clocks: dict[int, int] = {}  # by priority: the tag of the one who went last
        self._tags: dict[tuple[int, str], int] = {}  # by priority and session: the tag of its last request
        self._numbers = 0
        self._gone_before = 0  # how many have gone before those that may wait, since one of these went

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, waiter: W) -> bool:
        return waiter in self._waiting

    def join(self, waiter: W) -> None:
        self._numbers += 1
        waiter.number = self._numbers
        clock = self._clocks.get(waiter.priority, 0)
        if waiter.session is None:
            waiter.tag = clock + 1
        else:
            key = (waiter.priority, waiter.session)
            waiter.tag = self._tags[key] = max(clock, self._tags.get(key, 0)) + 1
        insort(self._waiting, waiter, key=_rank)

    def order(self) -> Iterator[W]:
        """Those who wait, the next one first."""
        first = None
        if self._gone_before >= self._patient_every:
            first = min((w for w in self._waiting if w.patient), key=lambda waiter: waiter.number, default=None)
        if first is None:
            yield from self._waiting
        else:
            yield first
            yield from (waiter for waiter in self._waiting if waiter is not first)

    def went(self, waiter: W) -> None:
        """It has its place."""
        self._clocks[waiter.priority] = max(waiter.tag, self._clocks.get(waiter.priority, 0))
        self.leave(waiter)
        overtaken = not waiter.patient and any(other.patient for other in self._waiting)
        self._gone_before = self._gone_before + 1 if overtaken else 0

    def leave(self, waiter: W) -> None:
        self._waiting.remove(waiter)
        key = (waiter.priority, waiter.session or "")
        if self._tags.get(key) == waiter.tag:
            del self._tags[key]  # nothing of its session waits behind it
        if not self._waiting:
            self._clocks.clear()
            self._gone_before = 0


def too_many(waiting: int) -> EngineOverloaded:
    message = f"{waiting} requests wait for the model already."
    return EngineOverloaded(message, hint="Try again later.")


def patient_places(size: int) -> int:
    """How many of an engine's places work may take that has nobody waiting for it. An engine that is full starts
    nobody, however urgent (vLLM's priorities only order its own queue), so some places are kept free of it."""
    return max(1, int(size * _PATIENT_PART))


def _rank(waiter: Waiter) -> tuple[int, int, int]:
    return waiter.priority, waiter.tag, waiter.number
