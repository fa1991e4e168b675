"""Requests that are answered when something has happened, and whose client may leave before."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from headrace.http.exchange import Exchange
from headrace.log.follow import follow
from headrace.log.ports import Log


async def end_of(log: Log, run_id: str) -> None:
    """Return when the run has ended."""
    async for _ in follow(log, run_id):
        pass


async def ends_before_the_client(exchange: Exchange, log: Log, run_id: str, *, within: float | None = None) -> bool:
    """Wait for the run's end. False if the client left before it, or `within` seconds have passed."""
    return await before_the_client_leaves(exchange, end_of(log, run_id), within=within)


async def before_the_client_leaves(
    exchange: Exchange, work: Coroutine[Any, Any, object], *, within: float | None = None
) -> bool:
    """Whether the work came to its end while the client was there, and within so many seconds. It is cancelled
    otherwise. Raises what the work raises."""
    try:
        async with asyncio.TaskGroup() as group:
            gone = group.create_task(exchange.gone())
            done = group.create_task(work)
            await asyncio.wait([gone, done], timeout=within, return_when=asyncio.FIRST_COMPLETED)
            gone.cancel()
            done.cancel()
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return not done.cancelled()
