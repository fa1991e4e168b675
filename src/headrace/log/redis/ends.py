"""What happens to runs in Redis that have ended, grown long, or been damaged there."""

import msgspec

from headrace.log.live import LiveRun, info
from headrace.log.ports import NewRun
from headrace.log.redis.creation import Creation
from headrace.log.redis.deployment import Deployment
from headrace.log.redis.owned import LostEnd
from headrace.log.redis.scripts import REBUILD, SEAL, TRIM
from headrace.log.redis.stored import StoredRuns, body_of
from headrace.state import RunState

_json = msgspec.json.Encoder()

CLEANED_AT_ONCE = 10
"""Of a tenant's oldest runs, so many are looked at whenever one ends: forgotten ones leave the list."""


class Ends:
    """Everything raises LogUnavailable when Redis does not answer in time, and may be done again."""

    def __init__(self, at: Deployment, *, stored: StoredRuns, creation: Creation) -> None:
        self._at = at
        self._servers = at.writes
        self._keys = at.keys
        self._stored = stored
        self._creation = creation
        self._replay_ms = b"%d" % (at.retention.frames_age_s * 1000)
        self._keep_ms = b"%d" % (at.retention.state_age_s * 1000)

    async def seal(self, run: NewRun, state: RunState, terminal: bytes) -> None:
        """Keep what outlives the records of an ended run, and let time run for them."""
        log, meta, keys, kept = self._names(run.run_id)
        args = (_json.encode(info(run, state)), _json.encode(state), body_of(terminal), self._replay_ms, self._keep_ms)
        await self._creation.list_run(run, state.thread_id, ended=True)
        await self._at.written(self._servers.run(SEAL, (log, meta, keys, kept), args))
        await self._clean(run.tenant)

    async def seal_stored(self, run_id: str) -> None:
        """The same for a run whose owner died between its end and this."""
        run, state = await self._stored.by_id(run_id), await self._stored.state(run_id)
        if run is not None and state is not None and state.ended:
            await self.seal(run, state, await self._stored.terminal(run_id))

    async def trim(self, run: LiveRun) -> None:
        """Let go of the records that are no longer in memory; the state covers them."""
        log, meta, _, kept = self._names(run.id)
        args = (b"%d" % run.fence, b"%d" % run.first, _json.encode(run.fold_all()))
        await self._at.written(self._servers.run(TRIM, (log, meta, kept), args))

    async def rebuild(self, run: LiveRun, end: LostEnd) -> bool:
        """Write the end of a run over what Redis has left of it. False if another worker has claimed it meanwhile."""
        new, state = run.new, end.state
        args = (
            self._keys.follow(run.id).encode(),
            _json.encode(new),
            new.tenant.encode(),
            b"%d" % run.fence,
            b"%d" % run.head,
            self._at.worker.encode(),
            b"%d" % end.seq,
            body_of(end.frame),
            _json.encode(info(new, state)),
            _json.encode(state),
            self._replay_ms,
            self._keep_ms,
        )
        answer = await self._at.written(self._servers.run(REBUILD, self._names(run.id), args))
        if answer[0] != b"ok":
            return False
        await self._creation.list_run(new, state.thread_id, ended=True)
        return True

    async def _clean(self, tenant: str) -> None:
        key = self._keys.runs(tenant).encode()
        oldest = await self._at.written(self._servers.ask(key, (b"ZRANGE", key, b"0", b"%d" % (CLEANED_AT_ONCE - 1))))
        metas = [(run_id.decode(), self._keys.meta(run_id.decode()).encode()) for run_id in oldest]
        asked = [(run_id, self._servers.ask(meta, (b"EXISTS", meta))) for run_id, meta in metas]
        gone = [run_id for run_id, there in asked if not await self._at.written(there)]
        if gone:
            await self._creation.unlist(tenant, gone)

    def _names(self, run_id: str) -> tuple[bytes, bytes, bytes, bytes]:
        keys = self._keys
        log, meta = keys.log(run_id).encode(), keys.meta(run_id).encode()
        return log, meta, keys.keys(run_id).encode(), keys.state(run_id).encode()
