"""The journal's housekeeping: ended runs go into the archive, old segments go away, old runs are forgotten."""

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable

from headrace.errors import LogCorrupt
from headrace.log.index import Index
from headrace.log.live import LiveRun
from headrace.log.livelog import LiveLog
from headrace.log.livereads import folded
from headrace.log.retention import Retention
from headrace.log.segments import Segments
from headrace.state import RunState

log = logging.getLogger(__name__)

SEAL_AT_ONCE = 64


class SealingLog(LiveLog):
    """A log with segments and an archive. `carry_bytes`: what may be left in an old segment to be carried over."""

    _index: Index
    _segments: Segments

    def __init__(
        self, *, retention: Retention, tidy_every_s: float, carry_bytes: int, clock: Callable[[], int]
    ) -> None:
        super().__init__(retention=retention, tidy_every_s=tidy_every_s, clock=clock)
        self._carry_bytes = carry_bytes
        self._tidying = asyncio.Lock()

    @abstractmethod
    def _has_room(self) -> bool:
        """Whether the disk takes anything now."""

    async def tidy(self) -> None:
        async with self._tidying:
            if not self._has_room():
                return
            due = await self._due()
            for start in range(0, len(due), SEAL_AT_ONCE):
                await self._seal(due[start : start + SEAL_AT_ONCE])
            await self._carry_over()
            await self._drop_segments()
            await self._age()

    async def _due(self) -> list[LiveRun]:
        """Ended runs to seal now, oldest end first."""
        now = self._clock()
        room = self._retention.ended_bytes - sum(run.size for run in self._ended.values())
        due = []
        for run in tuple(self._ended.values()):
            state = run.folded
            if state is None or not state.ended:
                state = await self._folded(run)
            if state is None:
                continue
            if room < 0 or now - (state.ended_ts or 0) >= self._retention.seal_after_s * 1000:
                due.append(run)
                room += run.size
        return due

    async def _folded(self, run: LiveRun) -> RunState | None:
        """The end of a run, None for one that cannot be read: it stays in the journal, and the others are sealed."""
        await asyncio.sleep(0)  # a fold takes up to some milliseconds: let the tokens of others pass
        try:
            return await folded(run)
        except LogCorrupt as error:
            log.error("run %s is not sealed: %s", run.id, error)
            self._ended.pop(run.id, None)
            return None

    async def _seal(self, runs: list[LiveRun]) -> None:
        sealed = []
        for run in runs:
            state = await self._folded(run)
            if state is not None:
                sealed.append((run, state))
        await self._index.seal(sealed)
        for run, _ in sealed:
            self._forget(run)
        self._segments.unpin(run.id for run, _ in sealed)

    async def _carry_over(self) -> None:
        """Free old segments of runs that live on: little is left in them, and it is stored once more."""
        for number in self._segments.old():
            runs = [self._runs.get(run_id) for run_id in self._segments.pinned(number)]
            live = [run for run in runs if run is not None and not run.ending]
            size = sum(len(frame) for run in live for frame in run.frames)
            if len(live) == len(runs) and size <= self._carry_bytes:
                for run in live:
                    self._commits.open().carried.append(run)
                    await self._commits.durable(run)

    async def _drop_segments(self) -> None:
        unneeded = self._segments.unneeded()
        if unneeded and await self._index.checkpoint():
            self._segments.delete(unneeded)

    async def _age(self) -> None:
        now = self._clock()
        await self._index.age(
            frames_before=now - int(self._retention.frames_age_s * 1000),
            forget_before=now - int(self._retention.state_age_s * 1000),
            oldest_segment=self._segments.oldest(),
        )
