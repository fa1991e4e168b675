"""Shared by all tests: run a coroutine with a deadline, wait for a condition."""

import asyncio
import os
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
