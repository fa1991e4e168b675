"""The log that several processes share.

A run that this process has lives in its memory, as in the embedded log, and its followers here are served from there.
Redis has the last word on everything: it numbers the records, compares the fence, and what it has answered is durable.
Any other run is read from Redis; followers of one share its tail (tails.py).

    emit … emit → the tick's batch → one round trip → in memory too → followers here; a hint → followers elsewhere
    a client's request, from anywhere → one append → a hint to the owner, who asks what it does not know yet

While Redis cannot be reached, records wait here and are sent until they are answered; what clients ask is refused.
When it comes back knowing less than it had confirmed, the run is ended with `log_lost`: nothing is papered over.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Self

from headrace.clock import wall_ms
from headrace.errors import LogCorrupt, LogLost, LogUnavailable, RunEnded, StaleFence
from headrace.events import Event, Record, RunStarted
from headrace.log.live import tell
from headrace.log.livereads import LiveReads
from headrace.log.ports import Begun, Claim, Created, NewRun, RunInfo, Writer
from headrace.log.redis.appends import Appends
from headrace.log.redis.creation import Creation
from headrace.log.redis.deployment import Deployment
from headrace.log.redis.ends import Ends
from headrace.log.redis.hearing import Hearing
from headrace.log.redis.holding import Holding
from headrace.log.redis.housekeeping import Housekeeping
from headrace.log.redis.keys import Keys
from headrace.log.redis.leases import Leases, this_worker
from headrace.log.redis.servers import Servers
from headrace.log.redis.single import SingleAppends
from headrace.log.redis.stored import StoredRuns
from headrace.log.redis.writing import Writing
from headrace.log.reservations import Reservations
from headrace.log.retention import Retention
from headrace.log.rules import check_run_id, names_of, stale_fence
from headrace.log.writer import LiveWriter

LEASE_S = 3.0
ANSWER_WITHIN_S = 2.0
REPLAY = Retention(frames_age_s=300.0)
"""Records go five minutes after the end: the state and the terminal record stay."""

KEEP_ENDED_S = 10.0
"""Longer than a replica lags behind."""


class RedisLog(LiveReads):
    """See `ports.Log` and the top of this module. Use as an async context manager.

    `prefix` keeps deployments on one Redis apart. `lease_s`: seconds without a sign of life after which the runs of a
    process are given to others. `answer_within_s`: how long Redis may take before clients are refused.
    `tidy_every_s`, `keep_ended_s`: see housekeeping.py. `clock`: Unix milliseconds.

    Raises on entering:
        LogUnavailable: Redis does not answer.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "headrace",
        lease_s: float = LEASE_S,
        retention: Retention = REPLAY,
        answer_within_s: float = ANSWER_WITHIN_S,
        tidy_every_s: float = 1.0,
        keep_ended_s: float = KEEP_ENDED_S,
        clock: Callable[[], int] = wall_ms,
    ) -> None:
        super().__init__()
        self._url = url
        self._names = Keys(prefix)
        self._lease_s = lease_s
        self._retention = retention
        self._within_s = answer_within_s
        self._tidy_every_s = tidy_every_s
        self._clock = clock
        self._keep_ended_s = keep_ended_s
        self._reserved = Reservations()
        self._built = False
        self._open = AsyncExitStack()

    @property
    def writable(self) -> bool:
        return self._writes.failing is None and self._reads.failing is None

    @property
    def adopt_every_s(self) -> float | None:
        return self._leases.adopt_every_s

    # Life

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._build(stack)
            self._built = True
            self._open = stack.pop_all()
        return self

    async def _build(self, stack: AsyncExitStack) -> None:
        keys, within_s, worker = self._names, self._within_s, this_worker()
        self._writes = await stack.enter_async_context(
            Servers(
                self._url, answer_within_s=within_s, changed=self._changed, probe=(b"SET", keys.probe.encode(), b"")
            )
        )
        self._reads = await stack.enter_async_context(
            Servers(self._url, answer_within_s=within_s, changed=self._changed)
        )
        at = Deployment(
            writes=self._writes,
            reads=self._reads,
            keys=keys,
            worker=worker,
            retention=self._retention,
            within_s=within_s,
            clock=self._clock,
        )
        self._leases = await stack.enter_async_context(
            Leases(
                self._url,
                keys,
                worker=worker,
                lease_s=self._lease_s,
                lost=lambda run_id: self._holding.lost(run_id),
                work=lambda: tell(self._work_subscribers.values(), "runs are free"),
            )
        )
        group = await stack.enter_async_context(asyncio.TaskGroup())
        self._assemble(at, group)
        self._writing.commits.start()
        for work in (*self._hearing.work(), self._housekeeping.run()):
            stack.callback(group.create_task(work).cancel)

    def _assemble(self, at: Deployment, group: asyncio.TaskGroup) -> None:
        self._stored = self._archive = stored = StoredRuns(at)
        creation, appends = Creation(at), Appends(at)
        ends = Ends(at, stored=stored, creation=creation)
        self._writing = writing = Writing(
            at, appends=appends, ends=ends, group=group, stale=lambda run: self._holding.part_with(run)
        )
        self._single = SingleAppends(at, appends=appends, stored=stored, writing=writing)
        self._hearing = Hearing(self._runs, at, stored=stored, news=writing.ask_for_news, broken=self._check)
        self._holding = Holding(
            self._runs,
            at,
            leases=self._leases,
            writing=writing,
            stored=stored,
            ends=ends,
            creation=creation,
            tails=self._hearing.tails,
        )
        self._housekeeping = Housekeeping(
            at.writes,
            holding=self._holding,
            writing=writing,
            ends=ends,
            stir=self._hearing.stir,
            every_s=self._tidy_every_s,
            keep_ended_s=self._keep_ended_s,
        )

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Store what is left and release what is held, if Redis lets us; others find the rest by its leases."""
        async with self._open:
            self._housekeeping.close()
            if self._writes.failing is None:
                await self._holding.release_all()
                with suppress(LogUnavailable):
                    await self._housekeeping.tidy()
            await self._writing.close(self._within_s)

    # Writing

    async def create(
        self, run: NewRun, started: RunStarted, *, claim: bool = False, begun: Begun | None = None
    ) -> Created:
        check_run_id(run.run_id)
        names = names_of(run)
        await self._reserved.take(names)
        try:
            created = await self._holding.create(run, started, claim=claim or begun is not None)
        finally:
            self._reserved.release(names)
        if begun is not None and created.claim is not None:
            begun(created.claim)
        return created

    async def append(
        self,
        run_id: str,
        events: Sequence[Event],
        *,
        expected_seq: int | None = None,
        fence: int | None = None,
        key: str | None = None,
    ) -> Sequence[Record]:
        if not events:
            await self.head(run_id)
            return []
        run = self._runs.get(run_id)
        return await self._single.append(run_id, events, run=run, expected_seq=expected_seq, fence=fence, key=key)

    def writer(self, claim: Claim) -> Writer:
        run = self._runs.get(claim.run_id)
        if run is not None:
            return LiveWriter(run, claim, self._writing.commits)
        if self._holding.has_parted(claim.run_id):
            raise stale_fence(claim.run_id, claim.fence + 1, claim.fence)
        raise self._unknown(claim.run_id)

    async def claim(self, run_id: str) -> Claim:
        return await self._holding.claim(run_id)

    async def adopt(self, limit: int) -> Sequence[Claim]:
        return await self._holding.adopt(limit)

    async def release(self, claim: Claim) -> None:
        await self._holding.release(claim)

    # Reading

    async def catch_up(self, run_id: str) -> None:
        run = self._runs.get(run_id)
        if run is None:
            return  # it is read from Redis anyway
        try:
            async with asyncio.timeout(self._within_s):
                await self._writing.news(run)
        except (StaleFence, RunEnded, LogLost):
            pass  # it has moved or ended, which is news too
        except TimeoutError as exc:
            raise LogUnavailable("Redis does not answer.", hint="Come back in a second.") from exc

    async def read_frames(self, run_id: str, *, after: int = 0, limit: int = 1000) -> Sequence[bytes]:
        if run := self._runs.get(run_id):
            return run.slice(after, limit)
        frames, last = self._found(run_id, await self._stored.frames_and_last(run_id, after, limit))
        self._hearing.has_read(run_id, after, frames, last)
        return frames

    async def owner(self, run_id: str) -> str | None:
        run = self._runs.get(run_id)
        return run.new.tenant if run is not None else await self._stored.tenant(run_id)

    async def runs(
        self, tenant: str, *, thread_id: str | None = None, before: str | None = None, limit: int = 50
    ) -> Sequence[RunInfo]:
        rows: list[RunInfo] = []
        while len(rows) < limit:
            run_ids = await self._stored.listed(tenant, thread_id, before, limit - len(rows))
            rows += await self._rows(run_ids)
            if not run_ids:
                break
            before = run_ids[-1]
        return rows

    async def _rows(self, run_ids: Sequence[str]) -> list[RunInfo]:
        rows = await asyncio.gather(*map(self.find, run_ids), return_exceptions=True)
        for row in rows:
            if isinstance(row, BaseException) and not isinstance(row, LogCorrupt):
                raise row  # whoever asks for a run that cannot be read is told; a list has the others
        return [row for row in rows if isinstance(row, RunInfo)]

    # Hearing

    def subscribe(self, run_id: str, wake: Callable[[], None]) -> Callable[[], None]:
        run = self._runs.get(run_id)
        return run.subscribe(wake) if run is not None else self._hearing.tails.subscribe(run_id, wake)

    def recent(self, run_id: str, after: int) -> Sequence[bytes] | None:
        return super().recent(run_id, after) if run_id in self._runs else self._hearing.recent(run_id, after)

    def _changed(self) -> None:
        """Redis fails or is back: it may be another one, and know less."""
        if self._built and self._writes.failing is None:
            self._hearing.stir()

    def _check(self) -> None:
        self._writes.check()
        self._reads.check()
