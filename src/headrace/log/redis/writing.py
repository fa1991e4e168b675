"""Appending to the runs that this process has, and what Redis says to it.

One batch is under way at a time, over all runs, while the next one fills. A batch that is not answered is sent again
until it is (link.py), so it never crashes; but Redis may refuse it for single runs, which are then lost for themselves.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress

from headrace.clock import wall_ms
from headrace.errors import HeadraceError, LogCorrupt, LogLost, LogUnavailable, UnknownRun
from headrace.events import TERMINALS, Event, Record, RunErrored
from headrace.log.batch import Batch, GroupCommit
from headrace.log.live import LiveRun
from headrace.log.redis.appends import Appends, Asked, Single
from headrace.log.redis.ends import Ends
from headrace.log.redis.link import Answer
from headrace.log.redis.owned import LostEnd, catch_up, end_as_lost, lost_end, placed
from headrace.log.redis.servers import Servers
from headrace.log.redis.stored import StoredRuns, body_of
from headrace.log.retention import Retention
from headrace.log.rules import refuse_events, run_ended, seq_conflict, stale_fence
from headrace.wire.codec import decode_record, encode_record

log = logging.getLogger(__name__)

WAITING_RECORDS = 20_000
"""Records of one run that wait in memory for Redis to come back; then the run gets LogUnavailable."""


class Writing:
    """`group` runs what is under way. `stale` is told of a run that another worker has claimed.

    `ended` are runs whose end is durable; whoever has dealt with one takes it out.
    """

    def __init__(
        self,
        servers: Servers,
        appends: Appends,
        *,
        stored: StoredRuns,
        ends: Ends,
        group: asyncio.TaskGroup,
        retention: Retention,
        stale: Callable[[LiveRun], None],
        within_s: float,
        clock: Callable[[], int] = wall_ms,
    ) -> None:
        self._servers = servers
        self._appends = appends
        self._stored = stored
        self._ends = ends
        self._group = group
        self._retention = retention
        self._stale = stale
        self._within_s = within_s
        self._clock = clock
        self.commits = GroupCommit(self._write, landed=self._landed, crashed=lambda batch: None, clock=clock)
        self.ended: dict[str, LiveRun] = {}
        self._storing: set[asyncio.Task[None]] = set()
        self._closed = False
        self._lost: set[LiveRun] = set()  # while a batch is under way

    # The owner's batches

    def _write(self, batch: Batch) -> None:
        storing = self._group.create_task(self._store(batch))
        self._storing.add(storing)
        storing.add_done_callback(self._storing.discard)

    async def _store(self, batch: Batch) -> None:
        frames_of: dict[LiveRun, list[bytes]] = {}
        for run, frames in batch.taken:  # twice, if somebody asked for news of it before it emitted
            frames_of[run] = frames_of[run] + frames if run in frames_of else frames
        number = self._appends.number()
        asked = [(run, frames, run.head, self._appends.batch(run, frames, number)) for run, frames in frames_of.items()]
        batch.taken, damaged = [], []
        self._lost.clear()
        try:
            for run, frames, known, answer in asked:
                if not self._settle(batch, run, frames, known, await self._answer(answer)):
                    damaged.append(run)
        except asyncio.CancelledError:
            self.commits.crash(batch, LogUnavailable("the log is closed", hint="Open it with `async with`."))
            raise
        self.commits.land(batch)
        for run in damaged:
            await self._end_as_lost(run)

    async def _answer(self, asked: Asked) -> Answer:
        try:
            return await asked
        except LogUnavailable as error:  # Redis says what it never should
            return [b"broken", error]

    def _settle(self, batch: Batch, run: LiveRun, frames: list[bytes], known: int, answer: Answer) -> bool:
        """What Redis says to one run's part of a batch; False if it no longer has what it had confirmed."""
        status = answer[0]
        if run in self._lost:
            pass
        elif run.ended:
            return status not in (b"gone", b"lost")
        elif status == b"ok":
            self._catch_up(run, known + 1, answer[2:])
            batch.taken.append((run, placed(frames, answer[1])))
        elif status == b"stale":
            self._stale(run)
        elif status == b"ended":
            self.lose(run, lambda: run_ended(run.id))
            self.ask_for_news(run)
        elif status == b"broken":
            self.lose(run, lambda: LogUnavailable(answer[1].message, hint=answer[1].hint))
        else:
            return False
        return True

    def _catch_up(self, run: LiveRun, first: int, bodies: Sequence[bytes]) -> None:
        try:
            catch_up(run, first, bodies)
        except LogCorrupt as error:
            log.error("run %s cannot go on here: %s", run.id, error)
            self._stale(run)

    def lose(self, run: LiveRun, cause: Callable[[], Exception]) -> None:
        """What this run has not stored yet never happened; whoever waits for it gets `cause()`."""
        self._lost.add(run)
        self.commits.lose(run, cause)

    async def _end_as_lost(self, run: LiveRun) -> None:
        """Give a clear end to a run that Redis no longer has, or not all of it; if it had ended, that end again."""
        error = _lost(run)
        log.error("%s (%s)", error.message, error.code)
        event = RunErrored(code=error.code, message=error.message, retryable=error.retryable, hint=error.hint)
        end = LostEnd.again(run) if run.ended else lost_end(run, self._clock(), event)
        self.lose(run, lambda: _lost(run))
        run.token, run.ending = None, True
        while True:
            try:
                if await self._ends.rebuild(run, end):
                    end_as_lost(run, end)
                    self.ended[run.id] = run
                else:
                    self._stale(run)
                return
            except LogUnavailable:
                await asyncio.sleep(self._within_s / 4)

    def _landed(self, batch: Batch, noted: list[LiveRun]) -> None:
        for run in noted:
            if run.head >= run.notable:
                run.trim(len(run.frames) - self._retention.max_records)
                run.notable = run.first + self._retention.trim_at
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

    async def append(
        self,
        run_id: str,
        events: Sequence[Event],
        *,
        run: LiveRun | None,
        expected_seq: int | None,
        fence: int | None,
        key: str | None,
    ) -> Sequence[Record]:
        """See `RunLog.append`. `run` is the run in memory, if this process has it."""
        if run is not None and run.ending and key is None:
            raise run_ended(run_id)
        refuse_events(run_id, events, fence)
        if run is not None and run.last > run.head and fence is not None:
            await self.commits.durable(run)  # what its owner emitted before stands before
        ts = self._clock()
        append = Single(
            run_id=run_id,
            bodies=[body_of(encode_record(0, ts, event)) for event in events],
            key=key or f"~{secrets.token_hex(8)}",
            ends=isinstance(events[-1], TERMINALS),
            fence=fence,
            known=None if run is None else run.head,
            expected=expected_seq,
        )
        # The owner waits for Redis as its batches do; a client is told to come again.
        patient = run is not None and fence == run.fence
        within_s = None if patient else self._within_s
        answer = await self._servers.answered(self._appends.single(append), within=within_s)
        if answer[0] == b"again" and key is not None:
            return await self._appended_before(run_id, answer[1])
        if answer[0] not in (b"ok", b"again"):
            raise self._refused(append, run, answer)
        first = answer[1] if answer[0] == b"ok" else _span(answer[1])[0]
        if run is not None:
            await self._take_in(run, append, first, answer)
        return [
            Record(run_id=run_id, seq=seq, ts=ts, event=event)  # type: ignore[arg-type]
            for seq, event in enumerate(events, first)
        ]

    async def _appended_before(self, run_id: str, span: bytes) -> list[Record]:
        first, last = _span(span)
        frames = await self._stored.frames(run_id, first - 1, last + 1 - first) or []
        records = [decode_record(run_id, frame) for frame in frames]
        return [record for record in records if record.seq <= last]

    async def _take_in(self, run: LiveRun, append: Single, first: int, answer: Answer) -> None:
        """What this process has appended outside its batches goes into its memory like what others append."""
        if run.ended:
            return
        if append.known == run.head and answer[0] == b"ok" and self.commits.flying is None:
            if append.ends:
                self.lose(run, lambda: run_ended(run.id))
            self._catch_up(run, run.head + 1, [*answer[2:], *append.bodies])
            if append.ends:
                self.ended[run.id] = run
        else:
            with suppress(TimeoutError):  # what was asked is done; this process hears of it sooner or later
                async with asyncio.timeout(self._within_s):
                    await self.news(run)

    def _refused(self, append: Single, run: LiveRun | None, answer: Answer) -> HeadraceError:
        status = answer[0]
        if status == b"conflict":
            return seq_conflict(append.run_id, answer[1], append.expected or 0)
        if status == b"ended":
            if run is not None:
                self.ask_for_news(run)
            return run_ended(append.run_id)
        if status == b"stale":
            if run is not None and append.fence == run.fence:
                self._stale(run)
            return stale_fence(append.run_id, answer[1], append.fence or 0)
        if run is None:
            return UnknownRun(f"there is no run {append.run_id}", hint="It is forgotten by now, or never began.")
        self.ask_for_news(run)  # the batch finds out the same, and ends the run
        return _lost(run)

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
            for storing in tuple(self._storing):
                storing.cancel()


def _span(text: bytes) -> tuple[int, int]:
    first, _, last = text.partition(b"-")
    return int(first), int(last)


def _lost(run: LiveRun) -> LogLost:
    return LogLost(
        f"Redis no longer has records of run {run.id} that it had confirmed.",
        hint="It was emptied, or a replica took over that had not got them. Start the run again.",
    )
