"""Finds what blocks the event loop, while it does.

A blocking call in an agent stalls every run of the process. The loop beats; a thread listens, and when a beat is late
it logs the stack of the loop's thread as it is at that moment: the line that blocks. One log line per block, and not
more than one in `quiet` seconds.
"""

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import FrameType

_log = logging.getLogger("headrace.watchdog")


@asynccontextmanager
async def watch_loop(*, threshold: float = 0.1, quiet: float = 5.0) -> AsyncIterator["Watchdog"]:
    """Watch the running loop for blocks longer than `threshold` seconds until the context is left."""
    watchdog = Watchdog(asyncio.get_running_loop(), threshold=threshold, quiet=quiet)
    watchdog.start()
    try:
        yield watchdog
    finally:
        watchdog.stop()


class Watchdog:
    """`blocks` counts the blocks seen, also those that were not logged."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, threshold: float, quiet: float) -> None:
        self.blocks = 0
        self._loop = loop
        self._threshold = threshold
        self._quiet = quiet
        self._loop_thread = threading.get_ident()
        self._last_beat = time.monotonic()
        self._last_report = float("-inf")
        self._stopped = threading.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._thread = threading.Thread(target=self._listen, name="headrace-watchdog", daemon=True)

    def start(self) -> None:
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        self._last_beat = time.monotonic()
        self._timer = self._loop.call_later(self._threshold / 2, self._beat)

    def _listen(self) -> None:
        reported = 0.0
        while not self._stopped.wait(self._threshold / 4):
            beat = self._last_beat
            late = time.monotonic() - beat - self._threshold / 2
            if late > self._threshold and beat != reported:
                reported = beat
                self._found(late)

    def _found(self, late: float) -> None:
        frame = sys._current_frames().get(self._loop_thread)
        if frame is None or _waits(frame):
            return
        self.blocks += 1
        now = time.monotonic()
        if now - self._last_report < self._quiet:
            return
        self._last_report = now
        _log.warning(
            "the event loop has been blocked for %.0f ms by:\n%sUse an async call, or a sync tool (threads, cpu=True).",
            late * 1000,
            "".join(traceback.format_stack(frame)),
        )


def _waits(frame: FrameType) -> bool:
    """The loop is idle in its selector (asyncio's, or uvloop's in C): the machine was busy, nothing of ours blocks."""
    where = (frame.f_code.co_name, frame.f_code.co_filename.rpartition("/")[2])
    return where in (("select", "selectors.py"), ("run", "runners.py"))
