"""Which runs this process has: it creates, claims, adopts, and parts with them."""

import asyncio
import logging
import secrets
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from headrace.errors import HeadraceError, LogUnavailable, RunEnded, UnknownRun
from headrace.events import RunStarted
from headrace.log.live import LiveRun
from headrace.log.ports import Claim, Created, NewRun
from headrace.log.redis.creation import Creation
from headrace.log.redis.deployment import Deployment
from headrace.log.redis.ends import Ends
from headrace.log.redis.leases import Leases
from headrace.log.redis.scripts import CLAIM
from headrace.log.redis.stored import StoredRuns, body_of
from headrace.log.redis.tails import Tails
from headrace.log.redis.writing import Writing
from headrace.log.rules import created_before, run_ended, stale_fence
from headrace.state import RunState
from headrace.wire.codec import encode_record, frame_seq

log = logging.getLogger(__name__)

PAGE = 1000


class Holding:
    """`runs` are those in memory: LiveReads looks them up in the same dict."""

    def __init__(
        self,
        runs: dict[str, LiveRun],
        at: Deployment,
        *,
        leases: Leases,
        writing: Writing,
        stored: StoredRuns,
        ends: Ends,
        creation: Creation,
        tails: Tails,
    ) -> None:
        self.runs = runs
        self._at = at
        self._leases = leases
        self._writing = writing
        self._stored = stored
        self._ends = ends
        self._creation = creation
        self._tails = tails
        self._parted: set[str] = set()
        self._adopting = asyncio.Lock()  # who asked first is served first

    # Taking

    async def create(self, run: NewRun, started: RunStarted, *, claim: bool) -> Created:
        """See `RunLog.create`. Nobody else in this process creates a run with these names at the same time."""
        reserved, known = await asyncio.gather(self._creation.reserve(run), self._stored.by_id(run.run_id))
        if reserved.run_id != run.run_id:
            created_before(reserved, run)  # refuses it, if its key stands for another request
            run, known = reserved, await self._stored.by_id(reserved.run_id)
        elif known is not None and known != run:
            await self._creation.free(run)
        if known is not None:
            return created_before(known, run)
        frame = encode_record(1, self._at.clock(), started)
        await self._leases.hold(run.run_id)  # before it exists, so that it is found if this process dies now
        created = Created(run_id=run.run_id, new=True)
        try:
            known = await self._creation.begin(run, body_of(frame), fence=int(claim))
            if known is None:
                await self._creation.list_run(run, started.thread_id)
                if claim:
                    self._enter_new(run, frame)
                    return msgspec.structs.replace(created, claim=Claim(run_id=run.run_id, fence=1))
        except BaseException:
            await self._leases.release(run.run_id)  # whoever adopts it finds out whether it exists
            raise
        await self._leases.release(run.run_id)
        return created if known is None else created_before(known, run)

    def _enter_new(self, run: NewRun, frame: bytes) -> None:
        live = LiveRun(run, fence=1, held=True)
        live.last = 1
        live.accept([frame])
        self._enter(live)

    async def claim(self, run_id: str) -> Claim:
        run = self.runs.get(run_id)
        if run is not None:
            if run.ending:
                raise run_ended(run_id)
            if run.last > run.head:
                await self._writing.commits.durable(run)
        elif (head := await self._stored.head(run_id)) is None:
            raise unknown(run_id)
        elif head.closed:
            raise run_ended(run_id)
        await self._leases.hold(run_id)
        return await self._take(run_id)

    async def adopt(self, limit: int) -> Sequence[Claim]:
        async with self._adopting:
            run_ids = await self._leases.adopt(limit)
        claims = await asyncio.gather(*(self._adopted(run_id) for run_id in run_ids))
        return [claim for claim in claims if claim is not None]

    async def _adopted(self, run_id: str) -> Claim | None:
        """Go on with a run whose worker is gone, or clear away what that one has left."""
        try:
            return await self._take(run_id)
        except RunEnded:
            with suppress(LogUnavailable):
                await self._ends.seal_stored(run_id)
                await self._leases.done(run_id)
        except UnknownRun:
            await self._leases.done(run_id)
        except HeadraceError as error:
            log.error("run %s cannot be adopted: %s", run_id, error)
            self._leases.let_lapse(run_id)  # released, it would come back at once, and so for ever
        return None

    async def _take(self, run_id: str) -> Claim:
        """Raise the fence, and have the run in memory from now on."""
        meta = self._at.keys.meta(run_id).encode()
        nonce = secrets.token_hex(8).encode()
        args = (nonce, run_id.encode(), self._at.worker.encode(), self._at.keys.worker_prefix.encode())
        answer = await self._at.written(self._at.writes.run(CLAIM, (meta,), args))
        if answer[0] != b"ok":
            raise unknown(run_id) if answer[0] == b"gone" else run_ended(run_id)
        fence: int = answer[1]
        run = self.runs.get(run_id)
        if run is None:
            run = await self._load(run_id, fence)
            self._enter(run)
        else:
            self._writing.lose(run, lambda: stale_fence(run_id, fence, fence - 1))
            run.fence = fence
            run.lose()
        await self._writing.news(run)  # what came between the claim and this moment
        return Claim(run_id=run_id, fence=fence)

    async def _load(self, run_id: str, fence: int) -> LiveRun:
        new = await self._stored.by_id(run_id)
        if new is None:
            raise unknown(run_id)
        run = LiveRun(new, fence=fence, held=True)
        run.folded = await self._stored.snapshot(run_id)
        frames: list[bytes] = []
        while page := await self._stored.frames(run_id, frame_seq(frames[-1]) if frames else 0, PAGE):
            frames += page
        if frames:
            run.first = frame_seq(frames[0])
            run.head = run.first - 1
            run.last = frame_seq(frames[-1])
            run.accept(frames)
        return run

    def _enter(self, run: LiveRun) -> None:
        """This run is in memory from now on, and its followers here with it."""
        run.notable = run.first + self._at.retention.trim_at
        run.subscribers = self._tails.hand_over(run.id)
        self.runs[run.id] = run
        self._parted.discard(run.id)
        self._stored.forget(run.id)

    # Giving

    async def release(self, claim: Claim) -> None:
        run = self.runs.get(claim.run_id)
        if run is None or run.fence != claim.fence or run.ending:
            return
        if run.last > run.head:
            with suppress(HeadraceError, TimeoutError):
                async with asyncio.timeout(self._at.within_s):
                    await self._writing.commits.durable(run)
        if self.runs.get(claim.run_id) is run and not run.ending:
            self.part_with(run)
            await self._leases.release(run.id)

    async def release_all(self) -> None:
        held = [Claim(run_id=run.id, fence=run.fence) for run in self.runs.values() if not run.ending]
        await asyncio.gather(*map(self.release, held))

    def lost(self, run_id: str) -> None:
        """The leases say that another worker has a run."""
        if (run := self.runs.get(run_id)) is not None and not run.ended:
            self.part_with(run)

    def part_with(self, run: LiveRun) -> None:
        """This process has the run no more. Nothing is written, and whoever works on it is told."""
        if self.runs.get(run.id) is not run:
            return
        del self.runs[run.id]
        self._parted.add(run.id)
        held = run.fence
        run.fence += 1  # the next owner's, at the least
        self._writing.lose(run, lambda: stale_fence(run.id, held + 1, held))
        self._tails.take_over(run.id, run.subscribers)
        run.lose()

    def has_parted(self, run_id: str) -> bool:
        return run_id in self._parted

    # Ends

    async def seal(self, run: LiveRun, state: RunState) -> None:
        """Store what outlives the records of an ended run."""
        await self._ends.seal(run.new, state, run.frames[-1])
        await self.done(run)

    async def done(self, run: LiveRun) -> None:
        """Nobody needs to work on this run any more."""
        await self._leases.done(run.id)
        self._writing.ended.pop(run.id, None)

    def forget(self, run: LiveRun) -> None:
        """An ended run leaves memory."""
        if self.runs.get(run.id) is run:
            del self.runs[run.id]


def unknown(run_id: str) -> UnknownRun:
    return UnknownRun(f"there is no run {run_id}", hint="It was never started, or it is forgotten by now.")
