"""How a worker leaves a run: with its one terminal record, or unfinished and released for others."""

import asyncio
import logging

import msgspec

from headrace import events as e
from headrace.errors import HeadraceError, LogUnavailable, RunEnded, SeqConflict
from headrace.log.ports import Log, Writer
from headrace.supervisor.terminal import errored
from headrace.supervisor.work import Work

logger = logging.getLogger("headrace.supervisor")

END_RETRY_S = (0.05, 0.2, 1.0, 3.0)
"""Waits between attempts to store a terminal record that the log refuses; the last one repeats."""

RELEASE_S = 3.0
"""How long a release may take: a process that has to go does not wait for a log that is away."""


async def end(log: Log, work: Work, writer: Writer, terminal: e.Terminal) -> None:
    """Append the terminal record, and give back the steers that no turn has read. Tries until it is stored."""
    attempt = 0
    while True:
        try:
            await _append_end(log, work, writer, terminal)
            return
        except (SeqConflict, RunEnded):
            if (await log.head(work.claim.run_id)).closed:
                return
            await asyncio.sleep(0)  # what stands in the way may not be stored yet: it is at the end of the tick
        except LogUnavailable as error:
            if work.lost:
                return  # it could not be stored at all
            terminal = errored(error)
            logger.error("run %s cannot be ended yet: %s", work.claim.run_id, error.message)
            await asyncio.sleep(END_RETRY_S[min(attempt, len(END_RETRY_S) - 1)])
            attempt += 1
            if work.released:
                return


async def _append_end(log: Log, work: Work, writer: Writer, terminal: e.Terminal) -> None:
    """Nothing is folded here unless the run was cancelled: a run of a million records ends as fast as another."""
    run_id = work.claim.run_id
    if isinstance(terminal, e.RunFinished) and terminal.status == "cancelled":
        await writer.commit()  # what the agent said while it cleaned up is not stored yet, and part of the output
        state = await log.state(run_id)
        terminal = msgspec.structs.replace(terminal, output=state.text, usage=state.usage)
    unread = work.unread_steers()
    returned = [e.SteerReturned(steer_id=s.steer_id, reason="the run has ended") for s in unread]
    try:
        await log.append(run_id, [*returned, terminal], expected_seq=writer.seq, fence=work.claim.fence)
    except HeadraceError:
        work.early += unread  # the next attempt gives them back
        raise


async def give_up(log: Log, work: Work, *, worker: str) -> None:
    """Release a run, so that others go on with it at once. The record says that its worker has not crashed."""
    try:
        async with asyncio.timeout(RELEASE_S):
            await log.writer(work.claim).commit(e.RunReleased(worker=worker))
            await log.release(work.claim)
    except (HeadraceError, TimeoutError) as error:
        logger.warning("run %s is left without a release: %s", work.claim.run_id, error)
