"""What the memory log and the journal share: runs in memory, group commit, idempotency, fences.

A subclass says how a batch is written (`_write`) and, with an `Archive`, where ended runs are once they have left
memory. Everything here runs on the loop's thread, and nothing waits but for durability and the archive.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from heapq import nsmallest
from operator import attrgetter
from types import TracebackType
from typing import Self, cast

from headrace.clock import wall_ms
from headrace.errors import LogUnavailable, RunEnded
from headrace.events import Event, Record, RunStarted
from headrace.log.batch import Batch, GroupCommit
from headrace.log.live import SPECIAL, LiveRun, tell
from headrace.log.livereads import EmbeddedReads
from headrace.log.ports import Begun, Claim, Created, NewRun, Writer
from headrace.log.reservations import Reservations
from headrace.log.retention import Retention
from headrace.log.rules import Name, check_run_id, created_before, names_of, refusal, refuse
from headrace.log.writer import LiveWriter
from headrace.state import apply, initial
from headrace.wire.codec import decode_record, encode_record

log = logging.getLogger(__name__)

_FIRST_STEPS = 2
"""Ticks in which a new run takes its first steps: its worker's, and the first token of a model that has it at once."""


class LiveLog(EmbeddedReads, ABC):
    """See `ports.Log`. Use as an async context manager."""

    def __init__(
        self,
        *,
        retention: Retention,
        tidy_every_s: float,
        clock: Callable[[], int] = wall_ms,
    ) -> None:
        super().__init__()
        self._retention = retention
        self._tidy_every_s = tidy_every_s
        self._clock = clock
        self._keys: dict[Name, LiveRun] = {}
        self._reserved = Reservations()
        self._ended: dict[str, LiveRun] = {}
        self._commits = GroupCommit(self._write, landed=self._landed, crashed=self._crashed, clock=clock)
        self._closing = asyncio.Event()
        self._housekeeper: asyncio.Task[None] | None = None

    # What a subclass is

    @abstractmethod
    def _write(self, batch: Batch) -> None:
        """Store `batch.created`, `claims` and `taken`; then `self._commits.land(batch)` or `crash`, now or later."""

    @abstractmethod
    async def tidy(self) -> None:
        """One round of housekeeping: what is old enough is sealed, trimmed or forgotten. Runs by itself too."""

    @property
    def writable(self) -> bool:
        return True

    @property
    def adopt_every_s(self) -> float | None:
        return None

    # Life

    async def __aenter__(self) -> Self:
        self._commits.start()
        self._housekeeper = asyncio.create_task(self._keep_house(), name="log housekeeping")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        if self._housekeeper is not None:
            await self._housekeeper
        await self._commits.stop()

    async def _keep_house(self) -> None:
        while not self._closing.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._tidy_every_s):
                    await self._closing.wait()
                    return
            try:
                await self.tidy()
            except Exception:
                log.exception("housekeeping of the log failed; it will be tried again")

    # Creating

    async def create(
        self, run: NewRun, started: RunStarted, *, claim: bool = False, begun: Begun | None = None
    ) -> Created:
        check_run_id(run.run_id)
        names = names_of(run)
        await self._reserved.take(names)
        owned = Claim(run_id=run.run_id, fence=1) if claim or begun else None
        try:
            known = await self._known(run)
            live = self._begin(run, started, fence=1 if owned else 0) if known is None else None
        except BaseException:
            self._reserved.release(names)
            raise
        if live is None:
            self._reserved.release(names)
            return created_before(cast(NewRun, known), run)
        if begun is not None and owned is not None:
            self._commits.hold(_FIRST_STEPS)
            begun(owned)
        await self._commits.durable(live)  # whoever settles the batch releases the names
        return Created(run_id=run.run_id, new=True, claim=owned)

    def _begin(self, run: NewRun, started: RunStarted, *, fence: int) -> LiveRun:
        """For its owner the run is there at once. Nobody else has heard of it before it is durable."""
        batch = self._commits.open()
        frame = encode_record(1, batch.ts, started)
        live = self._runs[run.run_id] = LiveRun(run, fence=fence, held=bool(fence))
        live.folded = apply(initial(run.run_id), Record(run_id=run.run_id, seq=1, ts=batch.ts, event=started))
        live.last = 1
        batch.created.append((live, frame))
        return live

    async def _known(self, run: NewRun) -> NewRun | None:
        """The earlier run with this key, or else with this id."""
        if run.key is not None:
            if live := self._keys.get((run.tenant, run.key)):
                return live.new
            if self._archive and (known := await self._archive.by_key(run.tenant, run.key)):
                return known
        if live := self._runs.get(run.run_id):
            return live.new
        return await self._archive.by_id(run.run_id) if self._archive else None

    # Appending

    async def append(
        self,
        run_id: str,
        events: Sequence[Event],
        *,
        expected_seq: int | None = None,
        fence: int | None = None,
        key: str | None = None,
    ) -> Sequence[Record]:
        run = self._runs.get(run_id)
        if run is None:
            return await self._append_to_sealed(run_id, key)
        if key is not None and key in run.keys:
            return await self._appended_before(run, run.keys[key])
        refuse(run, events, expected_seq, fence)
        if not events:
            return []
        records = self._add(run, events)
        if key is not None:
            run.keys[key] = run.fresh_keys[key] = (records[0].seq, records[-1].seq)
        await self._commits.durable(run)
        return records

    def _add(self, run: LiveRun, events: Sequence[Event]) -> list[Record]:
        batch = self._commits.open()
        first = run.last + 1
        frames = [encode_record(seq, batch.ts, event) for seq, event in enumerate(events, first)]
        run.last += len(frames)
        if not run.pending:
            batch.runs.append(run)
        run.pending += frames
        for seq, event in enumerate(events, first):
            if type(event) in SPECIAL:
                run.noted(seq, batch.ts, event)
        return [
            Record(run_id=run.id, seq=seq, ts=batch.ts, event=event)  # type: ignore[arg-type]
            for seq, event in enumerate(events, first)
        ]

    async def _appended_before(self, run: LiveRun, span: tuple[int, int]) -> list[Record]:
        first, last = span
        if last > run.head:
            await self._commits.durable(run)
        return [decode_record(run.id, frame) for frame in run.slice(first - 1, last + 1 - max(first, run.first))]

    async def _append_to_sealed(self, run_id: str, key: str | None) -> Sequence[Record]:
        keys = await self._archive.keys(run_id) if self._archive else None
        if keys is None:
            raise self._unknown(run_id)
        if key is None or key not in keys:
            raise RunEnded(f"run {run_id} has ended", hint="Nothing can be appended after the terminal record.")
        first, last = keys[key]
        records = await self.read(run_id, after=first - 1, limit=last + 1 - first)
        return [record for record in records if record.seq <= last]

    def writer(self, claim: Claim) -> Writer:
        run = self._runs.get(claim.run_id)
        if run is None:
            raise self._unknown(claim.run_id)
        return LiveWriter(run, claim, self._commits)

    async def claim(self, run_id: str) -> Claim:
        run = self._runs.get(run_id)
        if run is None:
            await self._append_to_sealed(run_id, None)
            raise self._unknown(run_id)
        if run.ending:
            raise refusal(run, run.fence)
        (claim,) = await self._hold([run])
        return claim

    async def adopt(self, limit: int) -> Sequence[Claim]:
        free = (run for run in self._runs.values() if not run.held and not run.ending)
        return await self._hold(nsmallest(limit, free, key=attrgetter("id")))

    async def _hold(self, runs: Sequence[LiveRun]) -> list[Claim]:
        """Claim them all in one write."""
        before = [run.held for run in runs]
        for run in runs:
            self._commits.open().claims.append((run, run.fence))
            run.fence += 1
            run.token = object()
            run.held = True
        claims = [Claim(run_id=run.id, fence=run.fence) for run in runs]
        try:
            for run in runs:
                await self._commits.durable(run)
        except LogUnavailable:
            for run, held in zip(runs, before, strict=True):
                run.held = held
            raise
        for run in runs:
            run.lose()
        return claims

    async def release(self, claim: Claim) -> None:
        run = self._runs.get(claim.run_id)
        if run is not None and run.held and run.fence == claim.fence and not run.ending:
            run.held = False
            tell(self._work_subscribers.values(), f"run {run.id} is free")

    # After a batch

    def _landed(self, batch: Batch, noted: list[LiveRun]) -> None:
        for run, _ in batch.created:
            self._remember(run)
            self._reserved.release(names_of(run.new))
        for run in noted:
            if run.head >= run.notable:
                run.trim(len(run.frames) - self._retention.max_records)
                run.notable = run.first + self._retention.trim_at
            if run.ended:
                self._note_ended(run)

    def _crashed(self, batch: Batch) -> None:
        for run, _ in batch.created:
            del self._runs[run.id]
            self._reserved.release(names_of(run.new))
            run.lose()

    def _remember(self, run: LiveRun) -> None:
        self._runs[run.id] = run
        run.notable = run.first + self._retention.trim_at
        if run.new.key is not None:
            self._keys[(run.new.tenant, run.new.key)] = run

    def _note_ended(self, run: LiveRun) -> None:
        run.size = sum(map(len, run.frames))
        self._ended[run.id] = run

    def _forget(self, run: LiveRun) -> None:
        self._runs.pop(run.id, None)
        self._ended.pop(run.id, None)
        if run.new.key is not None:
            self._keys.pop((run.new.tenant, run.new.key), None)
