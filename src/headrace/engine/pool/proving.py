"""Whether replicas are fit: each says a token before it gets requests, and one that cannot is asked again until it can.

What becomes of one that is fit is its pool's affair. One that is told to drain is asked no more: it may be about to
stop.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import asynccontextmanager

from headrace.engine.pool.replica import Replica
from headrace.engine.warm_up import say_a_token
from headrace.errors import EngineError, EngineUnavailable

_log = logging.getLogger(__name__)

_FIRST, _LONGEST = 1.0, 30.0  # seconds between the trials of a replica that is not fit


class Proving:
    """A replica has `within` seconds for its token; `fit` is called, without waiting, with each that `begin` was called
    with, once it has said one."""

    def __init__(self, *, within: float, fit: Callable[[Replica], None]) -> None:
        self._within = within
        self._fit = fit
        self._group: asyncio.TaskGroup | None = None
        self._asking: dict[str, asyncio.Task[None]] = {}

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        """`begin` works inside of it; its end stops whatever has been begun."""
        async with asyncio.TaskGroup() as self._group:
            try:
                yield
            finally:
                for name in [*self._asking]:
                    self.stop(name)

    async def once(self, replica: Replica) -> None:
        """Have it say a token. Raises what `Engine.stream` raises."""
        await say_a_token(replica.engine, within=self._within)

    async def unfit(self, replicas: Collection[Replica]) -> dict[str, EngineError]:
        """Which of them are not fit, and why. All are asked at the same time, and shut out if they are not."""
        found = await asyncio.gather(*(self._fault(replica) for replica in replicas))
        faults: dict[str, EngineError] = {}
        for replica, fault in zip(replicas, found, strict=True):
            replica.learn_limit()
            if fault is not None:
                _log.error("the model server %s gets no requests: %s", replica.name, fault.message)
                replica.circuit.shut()
                faults[replica.name] = fault
        return faults

    def begin(self, replica: Replica) -> None:
        """Ask it for a token, now and until it has said one. Nobody asks it yet: whoever drains it calls `stop`."""
        assert self._group is not None, "the pool has not been entered"
        self._asking[replica.name] = self._group.create_task(self._ask(replica), name=f"proving {replica.name}")

    def stop(self, name: str) -> None:
        """Ask it no more, and do not let it in by what it has been asked. Nothing happens if it is not being asked."""
        if (asking := self._asking.pop(name, None)) is not None:
            asking.cancel()

    async def _ask(self, replica: Replica) -> None:
        wait = _FIRST
        while not await self._is_fit(replica):
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LONGEST)
        self._fit(replica)

    async def _is_fit(self, replica: Replica) -> bool:
        try:
            return await self._fault(replica) is None
        except Exception:  # a bug in one engine must not end those who use the others
            _log.exception("the model server %s could not be asked", replica.name)
            return False

    async def _fault(self, replica: Replica) -> EngineError | None:
        try:
            await self.once(replica)
        except EngineError as error:
            return error
        return None


def none_is_fit(faults: Mapping[str, EngineError]) -> EngineUnavailable:
    """What is wrong with each, in one error."""
    found = "; ".join(f"{name}: {error.message}" for name, error in faults.items())
    hint = "Each was asked for one token. Is the model loaded, and can it run on that machine?"
    return EngineUnavailable(f"No model server can answer. {found}", hint=hint)
