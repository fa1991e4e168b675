"""Whether a replica is asked: learned from the requests that it is given. Pure; `now` is loop time in seconds.

A replica that fails again and again is left alone for a while, then given one request, and when that one gets a word
out of it the replica comes back slowly: its caches are cold, and what made it fail may be the load.
"""

import math
from typing import Literal

import msgspec

State = Literal["closed", "open", "half_open", "warming"]
"""`closed`: it is asked. `open`: it is not. `half_open`: one request tries it. `warming`: it is asked more and more."""

Happening = Literal["failed_often", "failed", "asked", "left", "spoke", "warmed"]

TRANSITIONS: dict[State, dict[Happening, State]] = {
    "closed": {"failed_often": "open"},
    "open": {"asked": "half_open", "spoke": "warming"},
    "half_open": {"spoke": "warming", "failed": "open", "failed_often": "open", "left": "open"},
    "warming": {"warmed": "closed", "failed": "open", "failed_often": "open"},
}
"""What happens in which state, and the state after it. What is not here changes nothing."""


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """`failures` in a row open a circuit. It stays open for `cool_first` seconds, twice as long each further time, at
    most `cool_longest`. A replica that comes back has all its places after `slow_start` seconds. One that is overloaded
    and does not say for how long is left alone for `overloaded` seconds."""

    failures: int = 3
    cool_first: float = 1.0
    cool_longest: float = 10.0
    slow_start: float = 10.0
    overloaded: float = 1.0


class Circuit:
    """Of a replica that gives at most `limit` answers at once, which may change."""

    def __init__(self, limit: int, patience: Patience | None = None) -> None:
        self.state: State = "closed"
        self.failures = 0
        self.limit = limit
        self._patience = patience or Patience()
        self._cool = self._patience.cool_first
        self._open_until = 0.0
        self._warm_since = 0.0
        self._paused_until = 0.0

    def size(self, now: float) -> int:
        """How many answers it may give at once."""
        if self.state == "closed":
            return self.limit
        return self._warm(now) if self.state == "warming" else 1

    def room(self, active: int, now: float) -> int:
        """How many more requests it may be given when it is answering `active`."""
        if now < self._paused_until or self.state == "half_open":
            return 0
        if self.state == "open":  # whatever it is still answering, the next request is the one that tries it
            return int(now >= self._open_until)
        return max(0, self.size(now) - active)

    def in_service(self, now: float) -> bool:
        """Whether a request may count on it, if it waits."""
        return self.state in ("closed", "warming") and now >= self._paused_until

    def changes_at(self, now: float) -> float | None:
        """When it will have more room by the passing of time alone, None for never."""
        if now < self._paused_until:
            return self._paused_until
        if self.state == "open":
            return self._open_until if now < self._open_until < math.inf else None
        warm = self._warm(now)
        if self.state == "warming" and warm < self.limit:
            return max(now + 0.001, self._warm_since + self._patience.slow_start * warm / self.limit)
        return None

    def asked(self, now: float) -> None:
        """A request was given to it."""
        if self.state == "warming" and now >= self._warm_since + self._patience.slow_start:
            self._cool = self._patience.cool_first
            self._happened("warmed")
        self._happened("asked")

    def spoke(self, now: float) -> None:
        """It has said something."""
        if self.state in ("open", "half_open"):
            self._warm_since, self.failures = now, 0
        self._happened("spoke")

    def answered(self) -> None:
        """An answer of it came to its end."""
        self.failures = 0

    def left(self, now: float) -> None:
        """A request was taken back, which says nothing; but another one may try."""
        if self.state == "half_open":
            self._open_until = now
        self._happened("left")

    def failed(self, now: float) -> None:
        """It could not be reached, broke off, or said nothing for too long."""
        self.failures += 1
        was = self.state
        self._happened("failed_often" if self.failures >= self._patience.failures else "failed")
        if self.state == "open" and was != "open":
            self._open_until = now + self._cool
            self._cool = min(2 * self._cool, self._patience.cool_longest)

    def overloaded(self, now: float, retry_after: float | None) -> None:
        """It asks to be left alone for so many seconds."""
        wait = self._patience.overloaded if retry_after is None else retry_after
        self._paused_until = max(self._paused_until, now + wait)
        self.left(now)

    def shut(self) -> None:
        """Nobody is to try it; only `spoke` brings it in."""
        self.state, self._open_until = "open", math.inf

    def _warm(self, now: float) -> int:
        part = (now - self._warm_since) / self._patience.slow_start
        return max(1, min(self.limit, 1 + int(part * self.limit)))

    def _happened(self, what: Happening) -> None:
        self.state = TRANSITIONS[self.state].get(what, self.state)
