"""Replicas of one model behind one name.

A request takes a place at the replica that has its beginning in the cache (`choice.py`), or waits in one line for all
of them (`line.py`). A replica that cannot be reached, or fails before it has said anything, costs the request nothing:
the next one is asked at once. After the first word the caller decides, who knows what has been said; what goes on with
it may go to any replica. Whether a replica is asked at all is learned from the answers that it gives (`circuit.py`).
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from itertools import count
from typing import cast

import msgspec

from headrace.engine.admission import require_supported
from headrace.engine.line.caller import Caller, now
from headrace.engine.line.line import MAX_WAITING
from headrace.engine.pool.choice import prefix_of
from headrace.engine.pool.circuit import Patience
from headrace.engine.pool.common import in_common
from headrace.engine.pool.places import Places
from headrace.engine.pool.proving import Proving, none_is_fit
from headrace.engine.pool.replica import Replica, Standing
from headrace.engine.port import Capabilities, Chunk, Embedder, Engine, Finish, ModelRequest, Queued, Routed
from headrace.engine.warm_up import WITHIN_S
from headrace.errors import ConfigError, EngineDied, EngineError, EngineRejected, EngineUnavailable

RESTART_WAIT = 10.0


class EnginePool:
    """`replicas` are engines with the same model, each with a name that stays the same from start to start.

    Each gives at most `limit` answers at once, one number for all or one for each name: by default its number of slots,
    which it may know only once it is entered or has come up, or 64 if it does not say. At most
    `max_waiting` requests wait for a place, however long while any replica is in service, and `restart_wait` seconds
    while none is.

    Entering it has every replica say one token within `warm_up` seconds. One that cannot gets no requests until it can.
    When none can, entering fails, unless `must_start` is False.
    """

    name = "pool"

    def __init__(
        self,
        replicas: Mapping[str, Engine],
        *,
        limit: int | Mapping[str, int] | None = None,
        max_waiting: int = MAX_WAITING,
        patience: Patience | None = None,
        restart_wait: float = RESTART_WAIT,
        warm_up: float = WITHIN_S,
        must_start: bool = True,
    ) -> None:
        self.model = _model_of(replicas)
        limits = limit if isinstance(limit, Mapping) else {} if limit is None else dict.fromkeys(replicas, limit)
        self._replicas = {
            name: Replica(name, engine, limit=limits.get(name), patience=patience or Patience())
            for name, engine in replicas.items()
        }
        for name in limits:
            self._replica(name)
        self._places = Places([*self._replicas.values()], max_waiting=max_waiting, restart_wait=restart_wait)
        self._proving = Proving(within=warm_up, fit=self._bring_in)
        self._must_start = must_start
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "EnginePool":
        """Raises EngineUnavailable if no replica says its token, and what entering a replica raises."""
        async with AsyncExitStack() as stack:
            for replica in self._replicas.values():
                await stack.enter_async_context(replica.engine)
            unfit = await self._proving.unfit(self._replicas.values())
            if len(unfit) == len(self._replicas) and self._must_start:
                raise none_is_fit(unfit)
            await stack.enter_async_context(self._proving.running())
            for name in unfit:
                self._proving.begin(self._replicas[name])
            stack.callback(self._places.close)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    # What it is

    @property
    def capabilities(self) -> Capabilities:
        """What every replica can that is well; what all can, if none is."""
        serving = [r for r in self._replicas.values() if r.well] or [*self._replicas.values()]
        slots = sum(replica.limit for replica in self._replicas.values())
        return msgspec.structs.replace(in_common(tuple(r.engine.capabilities for r in serving)), slots=slots)

    @property
    def waiting(self) -> int:
        """How many requests wait for a place."""
        return self._places.waiting

    def standings(self) -> list[Standing]:
        return [replica.standing(now(), waiting=self.waiting) for replica in self._replicas.values()]

    # Requests

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[Chunk], None]:
        """Raises EngineOverloaded too when too many wait already."""
        require_supported(request, self.capabilities, engine=self.name)
        async with aclosing(self._answer(request)) as chunks:
            yield chunks

    async def _answer(self, request: ModelRequest) -> AsyncGenerator[Chunk, None]:
        asked = now()
        caller = Caller(request, joined=asked, prefix=prefix_of(request))
        try:
            for attempt in count():
                self._places.join(caller)
                while (position := await caller.news()) is not None:
                    yield Queued(position)
                replica, began, spoke = self._replica(caller.holds), now(), False
                try:
                    async with self._asked(replica, caller, _numbered(request, attempt)) as chunks:
                        async for chunk in chunks:
                            if not spoke and not isinstance(chunk, Queued | Routed):
                                spoke = True
                                self._spoke(replica, caller)
                            if type(chunk) is Finish:
                                replica.circuit.answered()
                                yield msgspec.structs.replace(chunk, timing=chunk.timing.after((began - asked) * 1000))
                                return
                            yield chunk
                        raise EngineDied(f"{replica.name} ended its answer without saying why.")
                except EngineError as error:
                    if spoke or not self._places.elsewhere(caller, replica, error):
                        raise
        finally:
            self._places.leave(caller)

    @asynccontextmanager
    async def _asked(
        self, replica: Replica, caller: Caller, request: ModelRequest
    ) -> AsyncGenerator[AsyncIterator[Chunk], None]:
        """The answer of the replica at which the caller holds a place, which is given back."""
        failure = None
        try:
            async with replica.engine.stream(request) as chunks:
                yield chunks
        except EngineError as error:
            failure = error
            raise
        finally:
            self._places.give_back(caller, failure)

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """By the least busy replica, and by another one if it fails. Raises what `stream` raises."""
        if not self.capabilities.embeddings:
            raise EngineRejected(f"The model {self.model} makes no embeddings.", hint="Name a server that does.")
        asked = [replica for replica in self._replicas.values() if not replica.draining]
        ranked = sorted(asked, key=lambda r: (not r.in_service(now()), r.active / r.limit))
        caller = Caller(ModelRequest(), joined=now())
        for replica in ranked:
            if replica.draining:
                continue  # since another one was asked
            try:
                with replica.embeds():
                    return await cast(Embedder, replica.engine).embed(texts)
            except EngineError as error:
                if not self._places.elsewhere(caller, replica, error):
                    raise
        raise EngineUnavailable("No model server made the embeddings.")

    # Who is asked at all

    async def drain(self, name: str) -> bool:
        """Give the replica no more requests, and wait until it has no work: no answer, no embeddings. False if it is
        resumed before. Raises ConfigError for a replica that the pool does not have."""
        self.drain_nowait(name)
        return await self.settles(name)

    def drain_nowait(self, name: str) -> None:
        """Give the replica no more requests, nor ask it whether it is fit; `settles` waits for what it has. Raises what
        `drain` raises."""
        self._replica(name).drain()
        self._proving.stop(name)
        self._places.settle()

    async def resume(self, name: str) -> bool:
        """Bring a drained replica back, slowly, once it has said one token. Whoever waits for its drain waits no more.
        False if it is told to drain meanwhile, even if it drains already. Raises what `drain` and `stream` raise. In
        both cases it stays out of service."""
        replica = self._replica(name)
        drains = replica.drains
        await self._proving.once(replica)
        if replica.drains != drains:
            return False
        self._proving.stop(name)
        replica.resume()
        self._bring_in(replica)
        return True

    def resume_nowait(self, name: str) -> None:
        """The same, but it is asked for its token as often as it takes; `settles` waits for it. Raises what `drain`
        raises."""
        replica = self._replica(name)
        if replica.draining:
            replica.circuit.shut()
            replica.resume()
            self._proving.begin(replica)

    async def settles(self, name: str) -> bool:
        """Wait until the replica is where it was told to be: out of service and without work, or in service. False if
        it is told otherwise meanwhile. Raises what `drain` raises."""
        return await self._replica(name).settles()

    def is_last(self, name: str) -> bool:
        """Whether this replica is in service and no other one is. Raises what `drain` raises."""
        return self._replica(name).well and sum(replica.well for replica in self._replicas.values()) == 1

    def _bring_in(self, replica: Replica) -> None:
        replica.learn_limit()
        replica.circuit.shut()
        replica.spoke(now())
        self._places.settle()

    def _spoke(self, replica: Replica, caller: Caller) -> None:
        at = now()
        replica.spoke(at)
        if not caller.tried and all(each.in_service(at) for each in self._replicas.values()):
            replica.remember(caller.prefix, at)  # whom a failure has brought here goes home as soon as that is mended
        if replica.learn_limit():
            self._places.settle()

    def _replica(self, name: str | None) -> Replica:
        if name is None or name not in self._replicas:
            raise ConfigError(f"The pool has no replica {name}.", hint=f"It has {', '.join(self._replicas)}.")
        return self._replicas[name]


def _model_of(replicas: Mapping[str, Engine]) -> str:
    models = sorted({engine.model for engine in replicas.values()})
    if len(models) != 1:
        raise ConfigError(
            f"A pool needs replicas of one model, and these have {', '.join(models) or 'none'}.",
            hint="A model that stands in for another one is a fallback.",
        )
    return models[0]


def _numbered(request: ModelRequest, attempt: int) -> ModelRequest:
    """The request under an id of its own for each attempt."""
    if not attempt or request.request_id is None:
        return request
    return msgspec.structs.replace(request, request_id=f"{request.request_id}.{attempt}")
