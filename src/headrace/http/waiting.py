"""Requests that are answered when a run has ended."""

import asyncio

from headrace.http.exchange import Exchange
from headrace.log.follow import follow
from headrace.log.ports import Log


async def end_of(log: Log, run_id: str) -> None:
    """Return when the run has ended."""
    async for _ in follow(log, run_id):
        pass


async def ends_before_the_client(exchange: Exchange, log: Log, run_id: str, *, within: float | None = None) -> bool:
    """Wait for the run's end. False if the client left before it, or `within` seconds have passed."""
    async with asyncio.TaskGroup() as group:
        gone = group.create_task(exchange.gone())
        ended = group.create_task(end_of(log, run_id))
        await asyncio.wait([gone, ended], timeout=within, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        ended.cancel()
    return not ended.cancelled()
