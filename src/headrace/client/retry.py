"""When to come back, and when to give up. No clock and no sleep: `now` is an argument, waits are return values."""

import random
from collections.abc import Callable

from headrace.errors import ServerUnreachable

BASE_S = 0.1
CAP_S = 10.0


class Retry:
    """Decorrelated jitter: each wait is drawn between `base` and three times the last one, at most `cap` seconds and at
    most half of the time without progress so far: after an outage of two seconds nobody stays away for ten.

    Progress starts them anew. What the server asked for (Retry-After, SSE's `retry:`) is waited in full, with the
    jitter on top, so that a thousand clients it sent away do not come back in the same millisecond. After `patience`
    seconds in which nothing was heard it gives up; None never does.
    """

    def __init__(
        self,
        now: float,
        *,
        patience: float | None = 60.0,
        base: float = BASE_S,
        cap: float = CAP_S,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._base = base
        self._cap = cap
        self._uniform = uniform
        self._patience = patience
        self._heard_at = now
        self._lost_at: float | None = None
        self._last = base

    def progress(self, now: float) -> None:
        """Something new has come: waits start anew."""
        self._last = self._base
        self._heard_at = now
        self._lost_at = None

    def heard(self, now: float) -> None:
        """The server is there, if only by its heartbeat: patience starts anew, waits do not."""
        self._heard_at = now

    def wait(self, now: float, *, reason: str, at_least: float = 0.0) -> float:
        """Seconds to wait before the next attempt.

        Raises:
            ServerUnreachable: nothing has been heard for longer than the patience.
        """
        silent = now - self._heard_at
        if self._patience is not None and silent >= self._patience:
            raise ServerUnreachable(
                f"No answer for {silent:.0f} s: {reason}.", hint="Is the server running, and is its address right?"
            )
        if self._lost_at is None:
            self._lost_at = now
        most = min(self._last * 3, max(self._base * 3, (now - self._lost_at) / 2))
        self._last = min(self._cap, self._uniform(self._base, most))
        return max(0.0, at_least) + self._last
