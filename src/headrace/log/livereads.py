"""The reading half of a log that has runs in memory, and the others somewhere else."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Protocol, TypeVar

from headrace.errors import HeadraceError, LogCorrupt, UnknownRun
from headrace.events import Record
from headrace.log.live import LiveRun, info, subscribed
from headrace.log.ports import Head, NewRun, Owner, RunInfo
from headrace.state import RunState
from headrace.wire.codec import decode_record

T = TypeVar("T")

RECENT_FRAMES = 1000
"""What `recent` gives at once at most: a follower far behind asks again."""


class Stored(Protocol):
    """Where runs are that are not in memory. Everything answers None for a run it does not know."""

    async def head(self, run_id: str) -> Head | None: ...

    async def frames(self, run_id: str, after: int, limit: int) -> list[bytes] | None: ...

    async def state(self, run_id: str) -> RunState | None: ...

    async def info(self, run_id: str) -> RunInfo | None: ...

    async def by_id(self, run_id: str) -> NewRun | None: ...


class Archive(Stored, Protocol):
    """Where ended runs are when they have left memory."""

    async def keys(self, run_id: str) -> dict[str, tuple[int, int]] | None: ...

    async def runs(self, tenant: str, thread_id: str | None, before: str | None, limit: int) -> list[RunInfo]: ...

    async def by_key(self, tenant: str, key: str) -> NewRun | None: ...


class LiveReads:
    """Reads and wake-ups of `ports.Log`. Reads of a run in memory do not wait."""

    def __init__(self) -> None:
        self._archive: Stored | None = None
        self._runs: dict[str, LiveRun] = {}
        self._work_subscribers: dict[int, Callable[[], None]] = {}

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

    async def catch_up(self, run_id: str) -> None:
        """Nobody else can have done anything."""

    async def state(self, run_id: str) -> RunState:
        if run := self._runs.get(run_id):
            return await folded(run)
        return self._found(run_id, await self._archive.state(run_id) if self._archive else None)

    async def owner(self, run_id: str) -> str | None:
        if run := self._runs.get(run_id):
            return run.new.tenant
        known = await self._archive.by_id(run_id) if self._archive else None
        return known.tenant if known else None

    async def find(self, run_id: str) -> RunInfo | None:
        if run := self._runs.get(run_id):
            return info(run.new, await folded(run))
        return await self._archive.info(run_id) if self._archive else None

    def subscribe(self, run_id: str, wake: Callable[[], None]) -> Callable[[], None]:
        run = self._runs.get(run_id)
        return run.subscribe(wake) if run is not None else _nothing

    def subscribe_owner(self, run_id: str, owner: Owner) -> None:
        if run := self._runs.get(run_id):
            run.owner = owner

    def unsubscribe_owner(self, run_id: str, owner: Owner) -> None:
        run = self._runs.get(run_id)
        if run is not None and run.owner is owner:
            run.owner = None

    def subscribe_work(self, notify: Callable[[], None]) -> Callable[[], None]:
        return subscribed(self._work_subscribers, notify)

    def recent(self, run_id: str, after: int) -> Sequence[bytes] | None:
        run = self._runs.get(run_id)
        if run is None or after < run.first - 1:
            return None
        if after >= run.head:
            return ()
        start = after + 1 - run.first
        return run.frames[start : start + RECENT_FRAMES]

    def _unknown(self, run_id: str) -> HeadraceError:
        return UnknownRun(f"there is no run {run_id}", hint="It was never started, or it is forgotten by now.")

    def _found(self, run_id: str, value: T | None) -> T:
        if value is None:
            raise self._unknown(run_id)
        return value


class EmbeddedReads(LiveReads):
    """Those of a log whose ended runs are either in memory or in its archive."""

    _archive: Archive | None

    async def runs(
        self, tenant: str, *, thread_id: str | None = None, before: str | None = None, limit: int = 50
    ) -> Sequence[RunInfo]:
        found: dict[str, RunInfo] = {}
        for run in sorted(self._runs.values(), key=attrgetter("id"), reverse=True):
            if len(found) == limit:
                break
            with suppress(LogCorrupt):  # whoever asks for that run is told; a list has the others
                if _wanted(run, tenant, thread_id, before):
                    found[run.id] = info(run.new, await folded(run))
        if self._archive:
            for row in await self._archive.runs(tenant, thread_id, before, limit):
                found.setdefault(row.run_id, row)
        return sorted(found.values(), key=attrgetter("run_id"), reverse=True)[:limit]


def _wanted(run: LiveRun, tenant: str, thread_id: str | None, before: str | None) -> bool:
    if not run.head or run.new.tenant != tenant or (before is not None and run.id >= before):
        return False
    return thread_id is None or run.fold_some().thread_id == thread_id


async def folded(run: LiveRun) -> RunState:
    """Fold in steps, so that a long run does not hold up the loop."""
    state = run.fold_some()
    while state.seq < run.head:
        await asyncio.sleep(0)  # let others run
        state = run.fold_some()
    return state


def _nothing() -> None:
    """Ends a subscription that never was: a run in the archive does not grow."""
