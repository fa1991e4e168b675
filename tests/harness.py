"""Shared by all tests: run a coroutine with a deadline, wait for a condition."""

import asyncio
from collections.abc import Callable, Coroutine
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
