"""Which runs this worker holds, and which ones it may take over.

A lease says only when to try: what protects a run is the fence in its own keys. So nothing in here needs to be right
about who is alive, it only has to be quick, and never to forget a run that has not ended. Hence the order for callers:
a run enters the queue *before* it is created or claimed, and leaves it *after* its end is written. Whatever a crash
leaves in between (a run that does not exist, one that has ended) is adopted, found out and marked `done`.
"""

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from types import TracebackType

from redis import RedisError
from redis.commands.core import AsyncScript

from headrace.errors import LogUnavailable
from headrace.log.redis.connection import connect, unavailable_if_it_fails
from headrace.log.redis.contact import RENEWALS_PER_LEASE
from headrace.log.redis.keys import Keys
from headrace.log.redis.lease_scripts import ADOPT, DONE, HOLD, RELEASE
from headrace.log.redis.renewal import Renewal

ANSWER_WITHIN_S = 2.0
"""How long the server may take before what was asked counts as failed."""
CONNECTIONS = 8
"""However many runs begin at once; a pool without a limit would open a connection for each."""
LOOK_EVERY_S = 0.5
"""How often to look for leases that have run out, at the least."""


def this_worker() -> str:
    """A name for this life of this process; another life has another name, so that it is not taken for this one."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


class Leases:
    """An async context manager; leaving it releases what is still held.

    `lost` is called with each run that another worker has got, `work` when runs have become free; both on the loop,
    and neither may wait or raise. A lease that ran out is announced by nobody: look every `adopt_every_s`.

    Raises on entering:
        LogUnavailable: the server does not answer.
    """

    def __init__(
        self,
        url: str,
        keys: Keys,
        *,
        worker: str,
        lease_s: float,
        lost: Callable[[str], None],
        work: Callable[[], None],
    ) -> None:
        self._url = url
        self._worker = worker
        self._lease_s = lease_s
        self._lost = lost
        self._work = work
        self._channel = keys.work
        self._keys = [keys.leases, keys.holders, keys.taken]
        self._held: set[str] = set()
        self._renewal = Renewal(url, keys, worker=worker, lease_s=lease_s, held=self._held, lost=self._taken)
        self._connections = asyncio.Semaphore(CONNECTIONS)
        self._stack = AsyncExitStack()
        self.adopt_every_s = min(lease_s / RENEWALS_PER_LEASE, LOOK_EVERY_S)

    async def __aenter__(self) -> "Leases":
        async with AsyncExitStack() as stack:
            with unavailable_if_it_fails():
                redis = self._redis = await connect(self._url, timeout_s=ANSWER_WITHIN_S)
                stack.push_async_callback(redis.aclose)
                self._holding, self._adopting = redis.register_script(HOLD), redis.register_script(ADOPT)
                self._releasing, self._ending = redis.register_script(RELEASE), redis.register_script(DONE)
                stack.push_async_callback(asyncio.to_thread, self._renewal.end)
                await asyncio.to_thread(self._renewal.start, asyncio.get_running_loop())
            group = await stack.enter_async_context(asyncio.TaskGroup())
            stack.push_async_callback(_end, group.create_task(self._listen(), name="work"))
            stack.push_async_callback(self._release_all)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def hold(self, run_id: str) -> None:
        """Hold a run from now on, whoever held it before. Call it before the run is created or its fence raised.

        Raises:
            LogUnavailable: the server did not answer; `done` or `adopt` finds out whether it heard.
        """
        await self._ask(self._holding, self._lease_ms, run_id)
        self._held.add(run_id)

    async def adopt(self, limit: int) -> list[str]:
        """Up to `limit` runs that this worker holds from now on: free ones, and those of workers that are gone.

        Nobody is declared gone until this worker has had contact with the server for a whole lease: before that the
        server was away, or this process stood still, and the others are given the time to come back.

        Raises:
            LogUnavailable: the server did not answer.
        """
        now, contact = time.monotonic(), self._renewal.contact
        if limit < 1:
            return []
        known = [contact.obey_until_ms(now), int(contact.knows_the_dead(now))]
        runs = await self._ask(self._adopting, self._lease_ms, limit, *known) or []
        self._held.update(runs)
        return runs

    async def release(self, run_id: str) -> None:
        """Hold a run no more, and tell everybody that it is free; a lease that the server is not told of runs out."""
        self._held.discard(run_id)
        await self._give_up([run_id])

    def let_lapse(self, run_id: str) -> None:
        """Hold a run no longer than its lease: one that cannot be taken on now is tried again, but not at once."""
        self._held.discard(run_id)

    async def done(self, run_id: str) -> None:
        """A run has ended, or never began. If the server does not hear it, somebody adopts it and says it again."""
        self._held.discard(run_id)
        with suppress(LogUnavailable):
            await self._ask(self._ending, run_id)

    @property
    def _lease_ms(self) -> int:
        return round(self._lease_s * 1000)

    async def _release_all(self) -> None:
        held = list(self._held)
        self._held.clear()
        if held:
            await self._give_up(held)

    async def _give_up(self, runs: Sequence[str]) -> None:
        with suppress(LogUnavailable):
            await self._ask(self._releasing, self._channel, *runs)

    async def _ask(self, script: AsyncScript, *arguments: str | int) -> list[str] | None:
        with unavailable_if_it_fails():
            async with asyncio.timeout(ANSWER_WITHIN_S), self._connections:
                answer: list[str] | None = await script(self._keys, [self._worker, *arguments])
                return answer

    def _taken(self, runs: Sequence[str]) -> None:
        for run_id in runs:
            if run_id in self._held:
                self._held.discard(run_id)
                self._lost(run_id)

    async def _listen(self) -> None:
        """Wait for word of free runs. What was said while nobody listened is made up for by looking."""
        while True:
            try:
                async with self._redis.pubsub(ignore_subscribe_messages=True) as channel:
                    await channel.subscribe(self._channel)
                    self._work()
                    async for _ in channel.listen():
                        self._work()
            except (RedisError, OSError):
                await asyncio.sleep(self.adopt_every_s)


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel until it is heard: the driver swallows a cancellation that comes while it connects."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.1)
