"""The ToolContext of one call: a tool's only way to speak while it runs.

A sync tool calls from its own thread, so everything here may be called from any thread. Progress is handed to the loop
in the order it was made, before the tool's result; what comes after the call has been closed is dropped.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec


class CallContext:
    """Create it on the loop that runs the call. `show` is called on that loop, with JSON values only; `stopping`,
    from any thread, says that the run is being stopped."""

    def __init__(
        self,
        *,
        run_id: str,
        call_id: str,
        seconds: float,
        show: Callable[[Any], None],
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.run_id = run_id
        self.call_id = call_id
        self.abandoned = False
        """True when the work goes on although nobody waits for it: a thread that ignored `cancelled`."""
        self._show = show
        self._stopping = stopping
        self._ends = time.monotonic() + seconds
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._cancelled = False
        self._closed = False

    @property
    def deadline_left(self) -> float:
        return max(0.0, self._ends - time.monotonic())

    @property
    def cancelled(self) -> bool:
        return self._cancelled or self._stopping()

    def progress(self, data: Any) -> None:
        """Raises TypeError when `data` is not JSON."""
        copy = msgspec.json.decode(msgspec.json.encode(data))
        if threading.get_ident() == self._thread:
            self._deliver(copy)
        elif not self._closed:
            self._loop.call_soon_threadsafe(self._deliver, copy)

    def cancel_nowait(self) -> None:
        """The tool sees `cancelled` from now on."""
        self._cancelled = True

    def abandon_nowait(self) -> None:
        self.abandoned = True

    def close_nowait(self) -> None:
        """The call is over: nothing is shown any more."""
        self._closed = True

    def _deliver(self, data: Any) -> None:
        if not self._closed:
            self._show(data)
