"""How a run begins in Redis: its key is reserved, its records begin, it stands in the lists. Each step may be the last.

A key that points to a run which does not exist belongs to somebody who died in between, or is not through yet. Whoever
meets it creates that run; of several who do, one succeeds.
"""

import secrets
from collections.abc import Sequence

import msgspec

from headrace.log.ports import NewRun
from headrace.log.redis.deployment import Deployment
from headrace.log.redis.scripts import CREATE
from headrace.log.redis.wire import Answer

_json = msgspec.json.Encoder()

UNENDED_DAYS = 400
"""How long a key is kept whose run does not end. Once it does, the key goes with the run."""


class Creation:
    """Everything raises LogUnavailable when Redis does not answer in time."""

    def __init__(self, at: Deployment) -> None:
        self._at = at
        self._servers = at.writes
        self._keys = at.keys
        self._keep_ms = round(at.retention.state_age_s * 1000)

    async def reserve(self, run: NewRun) -> NewRun:
        """Take the run's key, if it has one, or tell who has it."""
        if run.key is None:
            return run
        key = self._keys.key(run.tenant, run.key).encode()
        kept = b"%d" % (UNENDED_DAYS * 86_400)
        found = await self._at.written(
            self._servers.ask(key, (b"SET", key, _json.encode(run), b"NX", b"GET", b"EX", kept))
        )
        return run if found is None else msgspec.json.decode(found, type=NewRun)

    async def free(self, run: NewRun) -> None:
        """Give back a key that was reserved for a run which is not created after all."""
        if run.key is not None:
            key = self._keys.key(run.tenant, run.key).encode()
            await self._at.written(self._servers.ask(key, (b"DEL", key)))

    async def begin(self, run: NewRun, body: bytes, *, fence: int) -> NewRun | None:
        """Create the run with its first record; or return the one that has this id already."""
        names = [self._keys.log(run.run_id).encode(), self._keys.meta(run.run_id).encode()]
        args = (
            secrets.token_hex(8).encode(),
            _json.encode(run),
            run.tenant.encode(),
            b"%d" % fence,
            self._at.worker.encode(),
            body,
        )
        answer = await self._at.written(self._servers.run(CREATE, names, args))
        return None if answer[0] == b"created" else msgspec.json.decode(answer[1], type=NewRun)

    async def list_run(self, run: NewRun, thread_id: str, *, ended: bool = False) -> None:
        """Enter the run in the lists of its tenant and of its thread; again does no harm.

        A list lives on for twice as long as its latest ended run, unless another one begins in it. Its runs go one by
        one before that, and readers pass over them.
        """
        asked: list[Answer] = []
        for name in (self._keys.runs(run.tenant), self._keys.thread(run.tenant, thread_id)):
            key = name.encode()
            asked.append(self._servers.ask(key, (b"ZADD", key, b"0", run.run_id.encode())))
            time = (b"PEXPIRE", key, b"%d" % (2 * self._keep_ms)) if ended else (b"PERSIST", key)
            asked.append(self._servers.ask(key, time))
        if ended and run.key is not None:
            key = self._keys.key(run.tenant, run.key).encode()
            asked.append(self._servers.ask(key, (b"SET", key, _json.encode(run), b"PX", b"%d" % self._keep_ms)))
        for answer in asked:
            await self._at.written(answer)

    async def unlist(self, tenant: str, run_ids: Sequence[str]) -> None:
        """Take forgotten runs out of their tenant's list."""
        key = self._keys.runs(tenant).encode()
        await self._at.written(self._servers.ask(key, (b"ZREM", key, *(run_id.encode() for run_id in run_ids))))
