"""Group commit: everything appended in one tick of the loop is stored in one write, then seen, then acknowledged.

    emit … emit → `open()` the tick's batch      one call_soon per tick
    end of tick → `take` → the store's `write`   inline, or in a thread while the next batch fills up; a batch may be
                                                 held for a tick or two (`hold`, `CROWDED`)
    stored      → `land(batch)`                  frames visible, followers woken, waiters answered
    not stored  → `crash(batch, exc)`            nothing visible, waiters and writers get LogUnavailable

If a batch crashes, so does whatever was appended behind it: its seqs would leave a hole.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeVar

from headrace.clock import wall_ms
from headrace.errors import LogUnavailable
from headrace.log.live import LiveRun
from headrace.log.ports import NewRun

T = TypeVar("T")

CROWDED = 128
"""So many runs in one tick say that the loop is behind its models. If nobody waits for this batch, it waits for the
next tick, in which they speak again: two tokens become one frame and one system call. A loop that is not behind has its
next tick at once."""


class Batch:
    """One tick's appends. `ts` stamps them all (Unix ms); `taken` is what the store shall write."""

    __slots__ = ("carried", "claims", "created", "held", "runs", "taken", "ts", "waiters")

    def __init__(self, ts: int) -> None:
        self.ts = ts
        self.runs: list[LiveRun] = []
        self.created: list[tuple[LiveRun, bytes]] = []  # each with the frame of its first record
        self.held: int | None = None  # ticks that it still waits for more
        self.carried: list[LiveRun] = []  # durable already; to be stored once more, in the newest place
        self.claims: list[tuple[LiveRun, int]] = []
        self.waiters: list[tuple[asyncio.Future[None], LiveRun]] = []
        self.taken: list[tuple[LiveRun, list[bytes]]] = []

    def take(self) -> None:
        for run in self.runs:
            self.taken.append((run, run.pending))
            run.pending = []

    def split(self) -> "Batch":
        """Keep the runs that end here, unless they begin here too; return a batch of everything else."""
        rest = Batch(self.ts)
        rest.created, self.created = self.created, []
        rest.carried, self.carried = self.carried, []
        rest.claims, self.claims = _parted(self.claims, lambda claim: _only_ends(claim[0]))
        rest.runs, self.runs = _parted(self.runs, _only_ends)
        rest.taken, self.taken = _parted(self.taken, lambda taken: _only_ends(taken[0]))
        rest.waiters, self.waiters = _parted(self.waiters, lambda waiter: _only_ends(waiter[1]))
        return rest

    def drop(self, run: LiveRun) -> "list[asyncio.Future[None]]":
        """Take everything of one run out; returns who waited for it."""
        self.runs = [other for other in self.runs if other is not run]
        self.taken = [(other, frames) for other, frames in self.taken if other is not run]
        self.waiters, dropped = _parted(self.waiters, lambda waiter: waiter[1] is run)
        return [waiter for waiter, _ in dropped]

    def touched(self) -> Iterable[LiveRun]:
        for run, _ in self.created:
            yield run
        yield from self.runs
        for run, _ in self.claims:
            yield run


def _only_ends(run: LiveRun) -> bool:
    return run.ending and run.head > 0


def _parted(items: list[T], keep: Callable[[T], bool]) -> tuple[list[T], list[T]]:
    """Those not to keep, and those to keep."""
    return [item for item in items if not keep(item)], [item for item in items if keep(item)]


class GroupCommit:
    """Owns the open batch and the one under way. `write` must answer with `land` or `crash`, now or later."""

    def __init__(
        self,
        write: Callable[[Batch], None],
        *,
        landed: Callable[[Batch, list[LiveRun]], None],
        crashed: Callable[[Batch], None],
        clock: Callable[[], int] = wall_ms,
    ) -> None:
        self._write = write
        self._landed = landed
        self._crashed = crashed
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self.batch: Batch | None = None
        self.flying: Batch | None = None
        self._overdue = False

    def open(self) -> Batch:
        """The batch of this tick. Raises LogUnavailable when the log is closed."""
        if self.batch is None:
            if self._loop is None:
                raise LogUnavailable("the log is closed", hint="Open it with `async with`.")
            self.batch = Batch(self._clock())
            self._loop.call_soon(self.flush)
        return self.batch

    def hold(self, ticks: int) -> None:
        """Write this tick's batch so many ticks later, together with what comes in them. No batch is held twice, so
        nobody waits for longer than that."""
        batch = self.open()
        if batch.held is None:
            batch.held = ticks

    async def durable(self, run: LiveRun) -> None:
        """Return when all that this run was given so far is stored. Raises LogUnavailable when it cannot be."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        (self.batch or self.flying or self.open()).waiters.append((waiter, run))
        await waiter

    def flush(self) -> None:
        if self.flying is not None:
            self._overdue = True
        elif (batch := self.batch) is not None:
            if batch.held is None and len(batch.runs) >= CROWDED and not batch.waiters:
                batch.held = 1
            if batch.held and self._loop is not None:
                batch.held -= 1
                self._loop.call_soon(self.flush)
                return
            self.batch = None
            self.flying = batch
            batch.take()
            self._write(batch)

    def land(self, batch: Batch) -> None:
        self.flying = None
        for run, frame in batch.created:
            run.accept([frame])
        noted = [run for run, frames in batch.taken if run.accept(frames)]
        self._landed(batch, noted)
        for waiter, _ in batch.waiters:
            if not waiter.done():
                waiter.set_result(None)
        if self._overdue:
            self._overdue = False
            self.flush()

    def crash(self, batch: Batch, cause: LogUnavailable) -> None:
        """Undo this batch and the one behind it."""
        self.flying = None
        self._overdue = False
        behind, self.batch = self.batch, None
        for lost in (behind, batch):
            if lost is not None:
                self._undo(lost, cause)

    def lose(self, run: LiveRun, cause: Callable[[], Exception]) -> None:
        """Undo what one run has in the batch under way and the one behind it. The others are not concerned."""
        run.roll_back()
        for batch in (self.flying, self.batch):
            for waiter in batch.drop(run) if batch is not None else ():
                if not waiter.done():
                    waiter.set_exception(cause())

    def refuse(self, batch: Batch, cause: LogUnavailable) -> None:
        """Before it is written: undo everything in this batch but the runs that end in it."""
        self._undo(batch.split(), cause)

    def _undo(self, batch: Batch, cause: LogUnavailable) -> None:
        for run, fence in reversed(batch.claims):
            run.fence = fence
        for run in batch.touched():
            run.roll_back()
        self._crashed(batch)
        for waiter, _ in batch.waiters:
            if not waiter.done():
                waiter.set_exception(LogUnavailable(cause.message, hint=cause.hint))

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def stop(self) -> None:
        """Store what is left, then refuse."""
        while self.batch is not None or self.flying is not None:
            with suppress(LogUnavailable):
                await self.durable(_NOBODY)
        self._loop = None


_NOBODY = LiveRun(NewRun(run_id=""))
