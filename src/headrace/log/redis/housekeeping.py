"""What is done now and then: ended runs are sealed and forgotten, long ones trimmed, everything looked at."""

import asyncio
import logging
from collections.abc import Callable

from headrace.errors import LogCorrupt, LogUnavailable
from headrace.log.live import LiveRun
from headrace.log.livereads import folded
from headrace.log.redis.ends import Ends
from headrace.log.redis.holding import Holding
from headrace.log.redis.servers import Servers
from headrace.log.redis.writing import Writing

log = logging.getLogger(__name__)

POLL_EVERY_S = 5.0
"""How often everything that waits for word from others is looked at without any."""


class Housekeeping:
    """`run` it in a task of its own. `stir` looks at everything that waits for word from others.

    `every_s`: seconds between two rounds. `keep_ended_s`: how long an ended run stays in memory, so that its end can
    be written again if a replica takes over that had not got it.
    """

    def __init__(
        self,
        servers: Servers,
        *,
        holding: Holding,
        writing: Writing,
        ends: Ends,
        stir: Callable[[], None],
        every_s: float,
        keep_ended_s: float,
    ) -> None:
        self._servers = servers
        self._holding = holding
        self._writing = writing
        self._ends = ends
        self._stir = stir
        self._every_s = every_s
        self._keep_ended_s = keep_ended_s
        self._sealed: dict[LiveRun, float] = {}
        self._trimmed: dict[str, int] = {}
        self._closing = False

    async def run(self) -> None:
        now = asyncio.get_running_loop().time
        polled = now()
        while not self._closing:  # before Python 3.12 the driver may swallow a cancellation
            await asyncio.sleep(self._every_s)
            try:
                await self.tidy()
            except LogUnavailable as error:
                log.warning("housekeeping is put off: %s", error.message)
            except Exception:
                log.exception("housekeeping of the log failed; it will be tried again")
            if self._servers.failing is not None:
                self._writing.break_those_that_wait(list(self._holding.runs.values()))
            elif now() - polled >= POLL_EVERY_S:
                polled = now()
                self._stir()

    def close(self) -> None:
        self._closing = True

    async def tidy(self) -> None:
        """One round. Raises LogUnavailable when Redis does not answer; the next one goes on."""
        now = asyncio.get_running_loop().time()
        for run in list(self._writing.ended.values()):
            await self._seal(run, now)
        for run, since in list(self._sealed.items()):
            if now - since >= self._keep_ended_s:
                self._holding.forget(run)
                del self._sealed[run]
        for run in list(self._holding.runs.values()):
            if run.first > self._trimmed.get(run.id, 1) and not run.ending:
                first = run.first
                await self._ends.trim(run)
                self._trimmed[run.id] = first
        for run_id in self._trimmed.keys() - self._holding.runs.keys():
            del self._trimmed[run_id]

    async def _seal(self, run: LiveRun, now: float) -> None:
        try:
            await self._holding.seal(run, await folded(run))
        except LogCorrupt as error:
            log.error("run %s is not sealed: %s", run.id, error)
            await self._holding.done(run)
        self._sealed[run] = now
