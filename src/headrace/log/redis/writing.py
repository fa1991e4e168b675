"""Appending to the runs that this process has, and what Redis says to it.

One batch is under way at a time, over all runs, while the next one fills. A batch that is not answered is sent again
until it is (link.py), so it never crashes; but Redis may refuse it for single runs, which are then lost for themselves.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from headrace.errors import LogCorrupt, LogLost, LogUnavailable
from headrace.events import RunErrored
from headrace.log.batch import Batch, GroupCommit
from headrace.log.live import LiveRun
from headrace.log.redis.appends import Appends
from headrace.log.redis.deployment import Deployment
from headrace.log.redis.ends import Ends
from headrace.log.redis.owned import LostEnd, catch_up, end_as_lost, lost_end, placed
from headrace.log.redis.wire import Answer
from headrace.log.rules import run_ended

log = logging.getLogger(__name__)

WAITING_RECORDS = 20_000
"""Records of one run that wait in memory for Redis to come back; then the run gets LogUnavailable."""


class Writing:
    """`group` runs what is under way. `stale` is told of a run that another worker has claimed.

    `ended` are runs whose end is durable; whoever has dealt with one takes it out.
    """

    def __init__(
        self,
        at: Deployment,
        *,
        appends: Appends,
        ends: Ends,
        group: asyncio.TaskGroup,
        stale: Callable[[LiveRun], None],
    ) -> None:
        self._at = at
        self._appends = appends
        self._ends = ends
        self._group = group
        self.stale = stale
        self.commits = GroupCommit(self._write, landed=self._landed, crashed=lambda batch: None, clock=at.clock)
        self.ended: dict[str, LiveRun] = {}
        self._rebuilding: dict[LiveRun, asyncio.Task[None]] = {}
        self._closed = False
        self._lost: set[LiveRun] = set()  # while a batch is under way

    # The owner's batches

    def _write(self, batch: Batch) -> None:
        """Ask; the answers land the batch. No task and no futures: each would be a turn of the loop."""
        self._lost.clear()
        frames_of: dict[LiveRun, list[bytes]] = {}
        for run, frames in batch.taken:  # twice, if somebody asked for news of it before it emitted
            frames_of[run] = frames_of[run] + frames if run in frames_of else frames
        if not frames_of:
            self.commits.land(batch)
            return
        flight = _Flight(batch, self._answered, self._closed_meanwhile)
        flight.parts = [_Part(run, frames, flight) for run, frames in frames_of.items()]
        flight.unanswered = len(flight.parts)
        number = self._appends.number()
        self._at.writes.route_now([self._appends.batch(part.run, part.frames, number, part) for part in flight.parts])

    def _answered(self, flight: "_Flight") -> None:
        if self.commits.flying is not flight.batch:
            return
        flight.batch.taken = []
        parts, flight.parts = flight.parts, []  # no cycle is left for the garbage collector
        for part in parts:
            self._settle(flight.batch, part.run, part.frames, part.known, part.answer)
        self.commits.land(flight.batch)

    def _closed_meanwhile(self, flight: "_Flight") -> None:
        if self.commits.flying is flight.batch:
            self.commits.crash(flight.batch, LogUnavailable("the log is closed", hint="Open it with `async with`."))

    def _settle(self, batch: Batch, run: LiveRun, frames: list[bytes], known: int, answer: Answer) -> None:
        """What Redis says to one run's part of a batch."""
        status = answer[0]
        if run in self._lost or run in self._rebuilding:
            pass
        elif status in (b"gone", b"lost"):
            self._end_as_lost(run)
        elif run.ended:
            pass
        elif status == b"ok":
            self.catch_up(run, known + 1, answer[2:])
            batch.taken.append((run, placed(frames, answer[1])))
        elif status == b"stale":
            self.stale(run)
        elif status == b"ended":
            self.lose(run, lambda: run_ended(run.id))
            self.ask_for_news(run)
        else:
            self.lose(run, lambda: LogUnavailable(f"run {run.id} could not be stored: {answer[1]}"))

    def catch_up(self, run: LiveRun, first: int, bodies: Sequence[bytes]) -> None:
        try:
            catch_up(run, first, bodies)
        except LogCorrupt as error:
            log.error("run %s cannot go on here: %s", run.id, error)
            self.stale(run)

    def lose(self, run: LiveRun, cause: Callable[[], Exception]) -> None:
        """What this run has not stored yet never happened; whoever waits for it gets `cause()`."""
        self._lost.add(run)
        self.commits.lose(run, cause)

    def _end_as_lost(self, run: LiveRun) -> None:
        """Give a clear end to a run that Redis no longer has, or not all of it; if it had ended, that end again."""
        error = lost_records(run)
        log.error("%s (%s)", error.message, error.code)
        event = RunErrored(code=error.code, message=error.message, retryable=error.retryable, hint=error.hint)
        end = LostEnd.again(run) if run.ended else lost_end(run, self._at.clock(), event)
        self.lose(run, lambda: lost_records(run))
        run.token, run.ending = None, True
        self._rebuilding[run] = self._group.create_task(self._rebuild(run, end))

    async def _rebuild(self, run: LiveRun, end: LostEnd) -> None:
        try:
            while True:
                with suppress(LogUnavailable):
                    if await self._ends.rebuild(run, end):
                        end_as_lost(run, end)
                        self.ended[run.id] = run
                    else:
                        self.stale(run)
                    return
                await asyncio.sleep(self._at.within_s / 4)
        finally:
            del self._rebuilding[run]

    def _landed(self, batch: Batch, noted: list[LiveRun]) -> None:
        for run in noted:
            if run.head >= run.notable:
                run.trim(len(run.frames) - self._at.retention.max_records)
                run.notable = run.first + self._at.retention.trim_at
            if run.ended:
                self.ended[run.id] = run

    # What others append

    def ask_for_news(self, run: LiveRun) -> None:
        """Take part in the next batch without records: what others have appended comes with the answer."""
        if not run.pending and not self._closed:
            self.commits.open().runs.append(run)

    async def news(self, run: LiveRun) -> None:
        """The same, and wait for it."""
        self.ask_for_news(run)
        await self.commits.durable(run)

    def break_those_that_wait(self, runs: Sequence[LiveRun]) -> None:
        """Redis is away: runs that have piled up too much may emit no more. What they emitted is still stored."""
        for run in runs:
            if len(run.pending) > WAITING_RECORDS and not run.ending:
                log.error("run %s has %d records that cannot be stored", run.id, len(run.pending))
                run.token = object()

    async def close(self, within_s: float) -> None:
        """Store what is left, if that takes no longer than this."""
        self._closed = True
        try:
            async with asyncio.timeout(within_s):
                await self.commits.stop()
        except TimeoutError:
            log.error("Redis does not answer: what was not stored yet is lost")
            if self.commits.flying is not None:
                self.commits.crash(self.commits.flying, LogUnavailable("the log is closed"))
        for rebuilding in self._rebuilding.values():
            rebuilding.cancel()


class _Flight:
    """A batch on its way. `answered` is called with the last of its answers, `cancelled` if there will be none."""

    __slots__ = ("answered", "batch", "cancelled", "parts", "unanswered")

    def __init__(
        self, batch: Batch, answered: "Callable[[_Flight], None]", cancelled: "Callable[[_Flight], None]"
    ) -> None:
        self.batch = batch
        self.answered = answered
        self.cancelled = cancelled
        self.parts: list[_Part] = []
        self.unanswered = 0


class _Part:
    """What a batch adds to one run, and what Redis says to it. See `link.Asker`."""

    __slots__ = ("answer", "flight", "frames", "known", "run")

    def __init__(self, run: LiveRun, frames: list[bytes], flight: _Flight) -> None:
        self.run = run
        self.frames = frames
        self.known = run.head
        self.flight = flight
        self.answer: Answer = None

    def done(self) -> bool:
        return False

    def set_result(self, answer: Answer, /) -> None:
        self.answer = answer
        self.flight.unanswered -= 1
        if not self.flight.unanswered:
            self.flight.answered(self.flight)

    def set_exception(self, error: Exception, /) -> None:
        """Redis said what it never should."""
        self.set_result([b"broken", error])

    def cancel(self) -> None:
        self.flight.cancelled(self.flight)


def lost_records(run: LiveRun) -> LogLost:
    return LogLost(
        f"Redis no longer has records of run {run.id} that it had confirmed.",
        hint="It was emptied, or a replica took over that had not got them. Start the run again.",
    )
