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
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from headrace.clock import wall_ms
from headrace.errors import LogCorrupt, LogUnavailable
from headrace.events import Event, Record, RunStarted
from headrace.log.live import LiveRun, tell
from headrace.log.livereads import RECENT_FRAMES, LiveReads, folded
from headrace.log.ports import Claim, Created, Head, NewRun, RunInfo, Writer
from headrace.log.redis.appends import Appends
from headrace.log.redis.channels import Channels
from headrace.log.redis.creation import Creation
from headrace.log.redis.ends import Ends
from headrace.log.redis.holding import Holding
from headrace.log.redis.keys import Keys
from headrace.log.redis.leases import Leases, this_worker
from headrace.log.redis.servers import Servers
from headrace.log.redis.stored import StoredRuns, body_of
from headrace.log.redis.tails import Tails
from headrace.log.redis.writing import Writing
from headrace.log.reservations import Reservations
from headrace.log.retention import Retention
from headrace.log.rules import check_run_id, created_before, names_of, stale_fence
from headrace.log.writer import LiveWriter
from headrace.wire.codec import encode_record, frame_seq

log = logging.getLogger(__name__)

LEASE_S = 3.0
ANSWER_WITHIN_S = 2.0
REPLAY = Retention(frames_age_s=300.0)
"""Records go five minutes after the end: the state and the terminal record stay."""

POLL_EVERY_S = 5.0
"""How often everything that waits for word from others is looked at without any."""


class RedisLog(LiveReads):
    """See `ports.Log` and the top of this module. Use as an async context manager.

    `prefix` keeps deployments on one Redis apart. `lease_s`: seconds without a sign of life after which the runs of a
    process are given to others. `answer_within_s`: how long Redis may take before clients are refused.
    `tidy_every_s`: seconds between two rounds of housekeeping. `clock`: Unix milliseconds.

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
        self._reserved = Reservations()
        self._trimmed: dict[str, int] = {}
        self._closing = asyncio.Event()
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
        keys, within_s, retention, worker = self._names, self._within_s, self._retention, this_worker()
        self._writes = writes = await stack.enter_async_context(
            Servers(self._url, answer_within_s=within_s, changed=self._stir, probe=(b"SET", keys.probe.encode(), b""))
        )
        self._reads = reads = await stack.enter_async_context(
            Servers(self._url, answer_within_s=within_s, changed=self._stir)
        )
        self._stored = self._archive = stored = StoredRuns(reads, keys, within_s=within_s)
        self._leases = leases = await stack.enter_async_context(
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
        self._creation = creation = Creation(
            writes, keys, worker=worker, keep_ms=int(retention.state_age_s * 1000), within_s=within_s
        )
        ends = self._ends = Ends(
            writes, keys, stored=stored, creation=creation, worker=worker, retention=retention, within_s=within_s
        )
        self._writing = Writing(
            writes,
            Appends(writes, keys, worker=worker),
            stored=stored,
            ends=ends,
            group=group,
            retention=retention,
            stale=lambda run: self._holding.part_with(run),
            within_s=within_s,
            clock=self._clock,
        )
        self._channels = channels = Channels(reads.connection, heard=self._heard, begun=self._begun, broken=self._check)
        self._tails = tails = Tails(
            group,
            self._read_tail,
            wanted=lambda run_id: channels.listen(keys.follow(run_id).encode()),
            unwanted=lambda run_id: channels.ignore(keys.follow(run_id).encode()),
        )
        self._holding = Holding(
            self._runs,
            writes,
            keys,
            leases=leases,
            writing=self._writing,
            stored=stored,
            ends=ends,
            tails=tails,
            worker=worker,
            retention=retention,
            within_s=within_s,
        )
        self._writing.commits.start()
        self._worker_channel = keys.worker(worker).encode()
        channels.listen(self._worker_channel)
        for work in (channels.hear(), channels.speak(), self._keep_house()):
            stack.callback(group.create_task(work).cancel)

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Store what is left and release what is held, if Redis lets us; others find the rest by its leases."""
        async with self._open:
            self._closing.set()
            if self._writes.failing is None:
                held = [run for run in self._runs.values() if not run.ending]
                await asyncio.gather(*(self._holding.release(Claim(run_id=run.id, fence=run.fence)) for run in held))
                await self.tidy()
            await self._writing.close(self._within_s)

    # Creating

    async def create(self, run: NewRun, started: RunStarted, *, claim: bool = False) -> Created:
        check_run_id(run.run_id)
        names = names_of(run)
        await self._reserved.take(names)
        try:
            return await self._create(run, started, claim)
        finally:
            self._reserved.release(names)

    async def _create(self, run: NewRun, started: RunStarted, claim: bool) -> Created:
        reserved, known = await asyncio.gather(self._creation.reserve(run), self._stored.by_id(run.run_id))
        if reserved.run_id != run.run_id:
            known = await self._stored.by_id(reserved.run_id)
            created_before(reserved, run)  # also before that one exists: its key stands for another request
            run = reserved
        elif known is not None and known != run:
            await self._creation.free(run)
        if known is not None:
            return created_before(known, run)
        ts = self._clock()
        frame = encode_record(1, ts, started)
        await self._leases.hold(run.run_id)  # before it exists, so that it is found if this process dies now
        try:
            known = await self._creation.begin(run, body_of(frame), fence=int(claim))
            if known is None:
                await self._creation.list_run(run, started.thread_id)
        except LogUnavailable:
            await self._leases.release(run.run_id)  # whoever adopts it finds out whether it exists
            raise
        if known is not None or not claim:
            await self._leases.release(run.run_id)
            return Created(run_id=run.run_id, new=True) if known is None else created_before(known, run)
        live = LiveRun(run, fence=1, held=True)
        live.last = 1
        live.accept([frame])
        self._holding.enter(live)
        return Created(run_id=run.run_id, new=True, claim=Claim(run_id=run.run_id, fence=1))

    # Appending and owning

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
        return await self._writing.append(run_id, events, run=run, expected_seq=expected_seq, fence=fence, key=key)

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

    async def head(self, run_id: str) -> Head:
        """A process that stood still may have lost its runs and not know it yet: then clients have seen more than it
        has, and their cursors would be refused as another run's."""
        run = self._runs.get(run_id)
        if run is None or self._leases.sure:
            return await super().head(run_id)
        try:
            return self._found(run_id, await self._stored.head(run_id))
        except LogUnavailable:
            return run.facts()

    async def read_frames(self, run_id: str, *, after: int = 0, limit: int = 1000) -> Sequence[bytes]:
        if run := self._runs.get(run_id):
            return run.slice(after, limit)
        frames, last = self._found(run_id, await self._stored.frames_and_last(run_id, after, limit))
        reached = frame_seq(frames[-1]) if frames else after
        if reached >= last and (tail := self._tails.get(run_id)) is not None and tail.place(last):
            self._tails.stir(run_id)  # what came since then may have been announced before anybody listened
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

    async def _read_tail(self, run_id: str, after: int, limit: int) -> list[bytes]:
        return await self._stored.frames(run_id, after, limit) or []

    # Hearing

    def subscribe(self, run_id: str, wake: Callable[[], None]) -> Callable[[], None]:
        run = self._runs.get(run_id)
        return run.subscribe(wake) if run is not None else self._tails.subscribe(run_id, wake)

    def recent(self, run_id: str, after: int) -> Sequence[bytes] | None:
        if run_id in self._runs:
            return super().recent(run_id, after)
        tail = self._tails.get(run_id)
        return None if tail is None else tail.recent(after, RECENT_FRAMES)

    def _heard(self, channel: bytes, message: bytes) -> None:
        if channel == self._worker_channel:
            if run := self._runs.get(message.decode()):
                self._ask_for_news([run])
        else:
            self._tails.stir(self._run_of(channel), int(message))

    def _begun(self, channel: bytes) -> None:
        """What was said on this channel before now was not heard."""
        if channel == self._worker_channel:
            self._ask_for_news(list(self._runs.values()))
        else:
            self._tails.stir(self._run_of(channel))

    def _run_of(self, channel: bytes) -> str:
        return channel.decode().removeprefix(self._names.follow_prefix)

    def _stir(self) -> None:
        """Redis fails or is back: it may be another one, and know less."""
        if self._built and self._writes.failing is None:
            self._ask_for_news(list(self._runs.values()))
            self._tails.stir_all()

    def _check(self) -> None:
        self._writes.check()
        self._reads.check()

    def _ask_for_news(self, runs: Sequence[LiveRun]) -> None:
        if not self._closing.is_set():
            for run in runs:
                self._writing.ask_for_news(run)

    # Housekeeping

    async def _keep_house(self) -> None:
        now = asyncio.get_running_loop().time
        polled = now()
        while not self._closing.is_set():  # before Python 3.12 the driver may swallow a cancellation
            await asyncio.sleep(self._tidy_every_s)
            try:
                await self.tidy()
            except LogUnavailable as error:
                log.warning("housekeeping is put off: %s", error.message)
            except Exception:
                log.exception("housekeeping of the log failed; it will be tried again")
            if self._writes.failing is not None:
                self._writing.break_those_that_wait(list(self._runs.values()))
            elif now() - polled >= POLL_EVERY_S:
                polled = now()
                self._stir()

    async def tidy(self) -> None:
        """Seal what has ended and trim what has grown long. Runs by itself too."""
        for run in list(self._writing.ended.values()):
            try:
                await self._holding.seal(run, await folded(run))
            except LogCorrupt as error:
                log.error("run %s is not sealed: %s", run.id, error)
                await self._holding.forget(run)
            self._trimmed.pop(run.id, None)
        for run in list(self._runs.values()):
            if run.first > self._trimmed.get(run.id, 1) and not run.ending:
                first = run.first
                await self._ends.trim(run)
                self._trimmed[run.id] = first
