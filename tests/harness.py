"""Shared by all tests: run a coroutine with a deadline, wait for a condition, keep one engine for many tests."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def run_async(coroutine: Coroutine[Any, Any, T], deadline: float = 30.0) -> T:
    """Run to the end on a fresh loop; a test that hangs fails after `deadline` seconds."""

    async def bounded() -> T:
        async with asyncio.timeout(deadline):
            return await coroutine

    return asyncio.run(bounded())


async def until(condition: Callable[[], object], deadline: float = 10.0) -> None:
    """Wait until `condition()` is true, looking again on every tick or millisecond."""
    async with asyncio.timeout(deadline):
        while not condition():  # noqa: ASYNC110  (any condition, also one that nobody announces)
            await asyncio.sleep(0.001)


def is_alive(pid: int) -> bool:
    """False for a process that is gone, or dead and waiting for somebody to ask."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat")
        return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


class Home:
    """A loop in a thread of its own, on which one engine serves many tests. `close` it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T], deadline: float = 180.0) -> T:
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(coroutine, deadline), self.loop).result()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
