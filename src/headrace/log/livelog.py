"""What the memory log and the journal share: runs in memory, group commit, idempotency, fences.

A subclass says how a batch is written (`_write`) and, with an `Archive`, where ended runs are once they have left
memory. Everything here runs on the loop's thread, and nothing waits but for durability and the archive.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from types import TracebackType
from typing import Protocol, Self, TypeAlias, TypeVar

from headrace.clock import wall_ms
from headrace.errors import HeadraceError, IdempotencyConflict, RunEnded, SeqConflict, StaleFence, UnknownRun
from headrace.events import REQUESTS, TERMINALS, Event, Record, RunStarted
from headrace.log.batch import Batch, GroupCommit
from headrace.log.live import SPECIAL, LiveRun, info
from headrace.log.ports import Claim, Created, Head, NewRun, RunInfo, Writer
from headrace.log.retention import Retention
from headrace.log.writer import LiveWriter, refusal
from headrace.state import RunState
from headrace.wire.codec import decode_record, encode_record

log = logging.getLogger(__name__)

T = TypeVar("T")

RECENT_FRAMES = 1000
"""What `recent` gives at once at most: a follower far behind asks again."""

_Name: TypeAlias = tuple[str, ...]


class Archive(Protocol):
    """Where ended runs are when they have left memory. Everything answers None for a run it does not know."""

    async def head(self, run_id: str) -> Head | None: ...

    async def frames(self, run_id: str, after: int, limit: int) -> list[bytes] | None: ...

    async def state(self, run_id: str) -> RunState | None: ...

    async def info(self, run_id: str) -> RunInfo | None: ...

    async def keys(self, run_id: str) -> dict[str, tuple[int, int]] | None: ...

    async def runs(self, tenant: str, thread_id: str | None, before: str | None, limit: int) -> list[RunInfo]: ...

    async def by_id(self, run_id: str) -> NewRun | None: ...

    async def by_key(self, tenant: str, key: str) -> NewRun | None: ...


class LiveLog:
    """See `ports.Log`. Use as an async context manager."""

    def __init__(
        self,
        *,
        retention: Retention,
        archive: Archive | None = None,
        tidy_every_s: float,
        clock: Callable[[], int] = wall_ms,
    ) -> None:
        self._retention = retention
        self._archive = archive
        self._tidy_every_s = tidy_every_s
        self._clock = clock
        self._runs: dict[str, LiveRun] = {}
        self._keys: dict[_Name, LiveRun] = {}
        self._creating: dict[_Name, asyncio.Event] = {}
        self._ended: dict[str, LiveRun] = {}
        self._commits = GroupCommit(self._write, landed=self._landed, crashed=self._crashed, clock=clock)
        self._closing = asyncio.Event()
        self._housekeeper: asyncio.Task[None] | None = None

    # What a subclass is

    def _write(self, batch: Batch) -> None:
        """Store `batch.created`, `claims` and `taken`; then `self._commits.land(batch)` or `crash`, now or later."""
        raise NotImplementedError

    async def tidy(self) -> None:
        """One round of housekeeping: what is old enough is sealed, trimmed or forgotten. Runs by itself too."""
        raise NotImplementedError

    @property
    def writable(self) -> bool:
        return True

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

    async def create(self, run: NewRun, started: RunStarted, *, claim: bool = False) -> Created:
        names = _names(run)
        await self._reserve(names)
        try:
            known = await self._known(run)
            if known is not None:
                return _again(known, run)
            live = self._begin(run, started, fence=int(claim))
        except BaseException:
            self._release(names)
            raise
        await self._commits.durable(live)
        return Created(run_id=run.run_id, new=True, claim=Claim(run_id=run.run_id, fence=1) if claim else None)

    def _begin(self, run: NewRun, started: RunStarted, *, fence: int) -> LiveRun:
        live = LiveRun(run, fence=fence)
        batch = self._commits.open()
        live.pending.append(encode_record(1, batch.ts, started))
        live.last = 1
        batch.created.append(live)
        return live

    async def _reserve(self, names: Sequence[_Name]) -> None:
        """Wait until nobody else is creating a run of the same id or key. Whoever settles, releases."""
        while busy := next((self._creating[name] for name in names if name in self._creating), None):
            await busy.wait()
        settled = asyncio.Event()
        for name in names:
            self._creating[name] = settled

    def _release(self, names: Sequence[_Name]) -> None:
        for name in names:
            if settled := self._creating.pop(name, None):
                settled.set()

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
        _refuse(run, events, expected_seq, fence)
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
        self._commits.open().claims.append((run, run.fence))
        run.fence += 1
        run.token = object()
        claim = Claim(run_id=run_id, fence=run.fence)
        await self._commits.durable(run)
        return claim

    # Reading

    async def read(self, run_id: str, *, after: int = 0, limit: int = 1000) -> Sequence[Record]:
        frames = await self.read_frames(run_id, after=after, limit=limit)
        return [decode_record(run_id, frame) for frame in frames]

    async def read_frames(self, run_id: str, *, after: int = 0, limit: int = 1000) -> Sequence[bytes]:
        if run := self._runs.get(run_id):
            return run.slice(after, limit)
        return self._found(run_id, await self._archive.frames(run_id, after, limit) if self._archive else None)

    async def head(self, run_id: str) -> Head:
        if run := self._runs.get(run_id):
            return run.facts()
        return self._found(run_id, await self._archive.head(run_id) if self._archive else None)

    async def state(self, run_id: str) -> RunState:
        if run := self._runs.get(run_id):
            return await _folded(run)
        return self._found(run_id, await self._archive.state(run_id) if self._archive else None)

    async def owner(self, run_id: str) -> str | None:
        if run := self._runs.get(run_id):
            return run.new.tenant
        known = await self._archive.by_id(run_id) if self._archive else None
        return known.tenant if known else None

    async def find(self, run_id: str) -> RunInfo | None:
        if run := self._runs.get(run_id):
            return info(run.new, await _folded(run))
        return await self._archive.info(run_id) if self._archive else None

    async def runs(
        self, tenant: str, *, thread_id: str | None = None, before: str | None = None, limit: int = 50
    ) -> Sequence[RunInfo]:
        found: dict[str, RunInfo] = {}
        for run in sorted(self._runs.values(), key=attrgetter("id"), reverse=True):
            if run.new.tenant == tenant and (before is None or run.id < before) and len(found) < limit:
                row = info(run.new, await _folded(run))
                if thread_id is None or row.thread_id == thread_id:
                    found[run.id] = row
        if self._archive:
            for row in await self._archive.runs(tenant, thread_id, before, limit):
                found.setdefault(row.run_id, row)
        return sorted(found.values(), key=attrgetter("run_id"), reverse=True)[:limit]

    async def unfinished(self) -> Sequence[str]:
        return sorted(run.id for run in self._runs.values() if not run.ending)

    # Waking

    def subscribe(self, run_id: str, wake: Callable[[], None]) -> Callable[[], None]:
        run = self._runs.get(run_id)
        return run.subscribe(wake) if run is not None else _nothing

    def subscribe_requests(self, run_id: str, notify: Callable[[Record], None]) -> Callable[[], None]:
        run = self._runs.get(run_id)
        return run.subscribe_requests(notify) if run is not None else _nothing

    def recent(self, run_id: str, after: int) -> Sequence[bytes] | None:
        run = self._runs.get(run_id)
        if run is None or after < run.first - 1:
            return None
        if after >= run.head:
            return ()
        start = after + 1 - run.first
        return run.frames[start : start + RECENT_FRAMES]

    # After a batch

    def _landed(self, batch: Batch) -> None:
        for run in batch.created:
            self._remember(run)
            self._release(_names(run.new))
        trim_at = self._retention.trim_at
        for run, _ in batch.taken:
            if len(run.frames) > trim_at:
                run.trim(len(run.frames) - self._retention.max_records)
            if run.ended:
                run.size = sum(map(len, run.frames))
                self._ended[run.id] = run

    def _crashed(self, batch: Batch) -> None:
        for run in batch.created:
            self._release(_names(run.new))

    def _remember(self, run: LiveRun) -> None:
        self._runs[run.id] = run
        if run.new.key is not None:
            self._keys[(run.new.tenant, run.new.key)] = run

    def _forget(self, run: LiveRun) -> None:
        self._runs.pop(run.id, None)
        self._ended.pop(run.id, None)
        if run.new.key is not None:
            self._keys.pop((run.new.tenant, run.new.key), None)

    def _unknown(self, run_id: str) -> HeadraceError:
        return UnknownRun(f"there is no run {run_id}", hint="It was never started, or it is forgotten by now.")

    def _found(self, run_id: str, value: T | None) -> T:
        if value is None:
            raise self._unknown(run_id)
        return value


async def _folded(run: LiveRun) -> RunState:
    """Fold in steps, so that a long run does not hold up the loop."""
    state = run.fold_some()
    while state.seq < run.head:
        await asyncio.sleep(0)  # let others run
        state = run.fold_some()
    return state


def _nothing() -> None:
    """Ends a subscription that never was: a run in the archive does not grow."""


def _names(run: NewRun) -> list[_Name]:
    by_id: _Name = (run.run_id,)
    return [by_id] if run.key is None else [by_id, (run.tenant, run.key)]


def _again(known: NewRun, run: NewRun) -> Created:
    if known.tenant == run.tenant and known.fingerprint == run.fingerprint:
        return Created(run_id=known.run_id, new=False)
    raise IdempotencyConflict(
        f"{'this idempotency key' if run.key else f'run id {run.run_id}'} was used with another request",
        hint="Use a new key for a new request; repeat the same body for the same key.",
    )


def _refuse(run: LiveRun, events: Sequence[Event], expected_seq: int | None, fence: int | None) -> None:
    """Raise what `RunLog.append` promises to raise."""
    if run.ending:
        raise refusal(run, run.fence)
    if fence is not None and fence != run.fence:
        raise refusal(run, fence)
    if fence is None and not all(isinstance(event, REQUESTS) for event in events):
        raise StaleFence(
            f"only client requests are appended to run {run.id} without a fence",
            hint="Claim the run and append with `fence=claim.fence`, or through `writer(claim)`.",
        )
    if expected_seq is not None and expected_seq != run.last:
        raise SeqConflict(f"run {run.id} is at {run.last}, not at {expected_seq}", hint="Read again, then decide.")
    if any(isinstance(event, TERMINALS) for event in events[:-1]):
        raise RunEnded(f"nothing can follow the terminal record of run {run.id}", hint="Append it last.")
