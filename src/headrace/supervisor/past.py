"""What a worker has to know of the past before it can work on a run: the run itself, and what its thread has said."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from headrace.errors import LogUnavailable
from headrace.log.ports import Log
from headrace.messages import Message
from headrace.state import conversation, without_stand_ins
from headrace.supervisor.work import Work

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger("headrace.supervisor")

MAX_HISTORY_RUNS = 50
"""The latest runs of a thread that an agent is given as its conversation."""

READ_RETRY_S = 0.5


async def read_run(log: Log, work: Work) -> None:
    """Whose run it is and how it stands. Requests are listened for already, so that none falls between."""
    run_id = work.claim.run_id
    if work.tenant is None:
        work.tenant = await patiently(log.owner, run_id)
    work.begin_with(await patiently(log.state, run_id))


async def history(log: Log, work: Work) -> tuple[Message, ...]:
    """What was said in the thread before this run."""
    tenant, thread_id = work.tenant or "default", work.state.thread_id
    infos = await patiently(log.runs, tenant, thread_id=thread_id, limit=MAX_HISTORY_RUNS)
    earlier = [info.run_id for info in reversed(infos) if info.run_id < work.claim.run_id and info.ended_ts]
    states = [await patiently(log.state, run_id) for run_id in earlier]
    said = [message for state in states for message in conversation(state)]
    return without_stand_ins(said, work.state.input)


async def patiently(read: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """A run waits for its log however long that is away: it does not fail for it."""
    while True:
        try:
            return await read(*args, **kwargs)
        except LogUnavailable as error:
            logger.warning("a run waits for the log: %s", error.message)
            await asyncio.sleep(READ_RETRY_S)
