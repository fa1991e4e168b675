"""Threads for sync tools: ours, so that a slow tool never takes the loop's own executor (DNS, files) with it.

A thread per call, not a pool of long-lived ones: starting one costs about 60 µs, nothing beside a tool, and a thread
that ignores cancellation can be given up without taking a place in a pool or holding up the end of the process.
"""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import Generic, TypeVar, cast
from weakref import WeakKeyDictionary

T = TypeVar("T")

MAX_THREADS = 128
"""Sync calls at the same time per loop; more wait for a place. Given-up ones do not count."""

_places: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


async def run_in_thread(
    function: Callable[[], T],
    *,
    name: str = "headrace-tool",
    grace: float = 0.0,
    on_cancel: Callable[[], None] | None = None,
    on_abandon: Callable[[], None] | None = None,
) -> T:
    """What `function` returns or raises.

    When the caller is cancelled, `on_cancel` is called at once; a thread that has not ended `grace` seconds later is
    abandoned: it goes on unobserved, and `on_abandon` is called.
    """
    loop = asyncio.get_running_loop()
    places = _places.setdefault(loop, asyncio.Semaphore(MAX_THREADS))
    async with places:
        outcome: asyncio.Future[_Outcome[T]] = loop.create_future()
        run = contextvars.copy_context().run
        threading.Thread(target=_work, args=(run, function, loop, outcome), name=name, daemon=True).start()
        try:
            await asyncio.wait({outcome})
        except asyncio.CancelledError:
            if on_cancel is not None:
                on_cancel()
            await asyncio.wait({outcome}, timeout=grace)
            if on_abandon is not None and not outcome.done():
                on_abandon()
            raise
    return outcome.result().get()


class _Outcome(Generic[T]):
    """Carries an exception as a value: one that nobody waits for any more is nothing to warn of."""

    def __init__(self, result: T | None = None, error: BaseException | None = None) -> None:
        self._result = result
        self._error = error

    def get(self) -> T:
        if self._error is not None:
            raise self._error
        return cast(T, self._result)


def _work(
    run: Callable[..., T],
    function: Callable[[], T],
    loop: asyncio.AbstractEventLoop,
    future: "asyncio.Future[_Outcome[T]]",
) -> None:
    try:
        outcome = _Outcome(run(function))
    except BaseException as exc:
        outcome = _Outcome(error=exc)
    with contextlib.suppress(RuntimeError):  # the loop was closed while this thread, long abandoned, went on
        loop.call_soon_threadsafe(_settle, future, outcome)


def _settle(future: "asyncio.Future[_Outcome[T]]", outcome: "_Outcome[T]") -> None:
    if not future.done():
        future.set_result(outcome)
