"""A loop whose clock moves instead of waiting: a day's sleep takes no time, a lost wake-up shows as an exact number.

When nothing is ready it goes on to the next timer; without a timer nothing could ever happen, and that is an error.
For code that waits for timers and for other tasks only: nothing may come from outside, such as a socket or a thread.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """Waits for nothing: it moves the clock by what it was to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise AssertionError("everybody waits, and for nothing that is to come")
            self.now += timeout
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def run_virtually(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end on such a loop, whose time begins at 0."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(coroutine)
