"""Which runs this process works on: start, adopt, cancel, hand over, drain.

Every run ends with exactly one terminal record, and only the supervisor writes it, whatever its agent does. A run
that this process must leave unfinished is released: its agent writes nothing more, and whoever adopts it goes on. A run
that another worker has claimed is lost: its work stops at once, and nothing at all is written.
"""

import asyncio
import logging
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from headrace import events as e
from headrace.agent.port import AgentPort
from headrace.engine.port import Engine
from headrace.errors import HeadraceError, LogUnavailable, StaleFence
from headrace.log.ports import Claim, Log
from headrace.supervisor.attempt import Attempts
from headrace.supervisor.ending import end, give_up
from headrace.supervisor.places import Places
from headrace.supervisor.suspects import Suspects
from headrace.supervisor.work import Work

logger = logging.getLogger("headrace.supervisor")


class Supervisor:
    """An async context manager: entering it goes on with unfinished runs, leaving it releases what is still running.

    `max_active` runs work at the same time, the others wait in order; those that wait for a person do not count.
    `deadline` is seconds per run, None for no limit. `worker` names this process in `run.recovered`. A run that has
    brought down `max_crashes` workers in a row, without getting further in between, ends as poison.
    """

    def __init__(
        self,
        *,
        log: Log,
        agents: Mapping[str, AgentPort],
        engine: Engine | None,
        max_active: int = 256,
        deadline: float | None = None,
        max_crashes: int = 3,
        worker: str | None = None,
    ) -> None:
        self._log = log
        self._worker = worker or f"{platform.node()}:{os.getpid()}"
        self._places = Places(max_active)
        self._attempts = Attempts(
            log=log,
            agents=agents,
            engine=engine,
            deadline=deadline,
            worker=self._worker,
            max_crashes=max_crashes,
            suspects=Suspects(self._next),
        )
        self._group = asyncio.TaskGroup()
        self._look = asyncio.Event()  # for runs to adopt
        self._older = False  # the log may hold runs to adopt: they come before those that queue here
        self._leaving = False
        self._unsubscribe: Callable[[], None] = lambda: None

    @property
    def active(self) -> int:
        """Runs being worked on."""
        return len(self._places.active)

    @property
    def queued(self) -> int:
        """Runs waiting for a place."""
        return len(self._places.queue)

    async def __aenter__(self) -> "Supervisor":
        await self._group.__aenter__()
        self._unsubscribe = self._log.subscribe_work(self._look.set)
        await self._adopt()
        self._group.create_task(self._keep_adopting(), name="adopting runs")
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._leave()
        await self._group.__aexit__(None, None, None)

    def launch(self, claim: Claim, tenant: str, *, new_thread: bool) -> None:
        """Work on a run that this process has claimed (runs.Launch)."""
        self._take(Work(claim, tenant=tenant, new_thread=new_thread, on_stopped=self._stopped))

    # Adopting

    async def _keep_adopting(self) -> None:
        while not self._leaving:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._log.adopt_every_s):
                    await self._look.wait()
            self._look.clear()
            await self._adopt()

    async def _adopt(self) -> None:
        """Go on with runs that no living worker has, as many as there is room for."""
        self._older = True
        try:
            while not self._leaving and (room := self._places.room):
                claims = await self._log.adopt(room)
                self._older = len(claims) == room
                await self._go_on_with(claims)
                if not self._older:
                    break
        except LogUnavailable as error:
            self._older = False
            logger.warning("no runs are adopted: %s", error.message)
        except Exception:
            self._older = False
            logger.exception("runs cannot be adopted")
        self._next()

    async def _go_on_with(self, claims: Sequence[Claim]) -> None:
        if claims:
            logger.info("going on with %d unfinished runs", len(claims))
        for claim in claims:
            work = Work(claim, recovered=claim.fence > 1, on_stopped=self._stopped)
            if self._leaving:
                await give_up(self._log, work, worker=self._worker)
            else:
                self._take(work)

    # Leaving

    async def drain(self, grace: float) -> None:
        """Let runs finish for `grace` seconds. Those that wait for a person or a place are not waited for."""
        self._stop_adopting()
        await self._give_up_queue()
        deadline = asyncio.get_running_loop().time() + grace
        while tasks := [work.task for work in self._places.active if work.task and not work.waiting]:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                break
            await asyncio.wait(tasks, timeout=min(left, 0.1), return_when=asyncio.FIRST_COMPLETED)
        await self._leave()

    async def _leave(self) -> None:
        self._stop_adopting()
        for work in tuple(self._places.active):
            work.release()
        await self._give_up_queue()

    def _stop_adopting(self) -> None:
        self._leaving = True
        self._unsubscribe()
        self._look.set()

    async def _give_up_queue(self) -> None:
        waiting = tuple(self._places.queue)
        for work in waiting:
            self._drop(work)
        await asyncio.gather(*(give_up(self._log, work, worker=self._worker) for work in waiting))

    # One run

    def _take(self, work: Work) -> None:
        self._log.subscribe_owner(work.claim.run_id, work)
        if self._places.start(work):
            self._start(work)
        else:
            self._show_positions()

    def _start(self, work: Work) -> None:
        work.task = self._group.create_task(self._run(work))

    def _stopped(self, work: Work) -> None:
        """It was lost, or cancelled while it waited for a place (work.Work)."""
        if not work.lost:
            self._places.let_end(work)
            self._start(work)
            self._show_positions()
            return
        if not work.ending:  # else it may be this worker that gives it away
            logger.warning("run %s is not this worker's any more", work.claim.run_id)
        if work.task is None:
            self._drop(work)

    def _drop(self, work: Work) -> None:
        self._log.unsubscribe_owner(work.claim.run_id, work)
        self._places.leave(work)

    def _show_positions(self) -> None:
        for work, position in self._places.positions():
            try:
                self._log.writer(work.claim).emit(e.RunQueued(position=position))
            except HeadraceError:
                logger.warning("run %s cannot be told its place in the queue", work.claim.run_id)

    def _next(self) -> None:
        """There may be a place."""
        if self._older and self._places.room:
            self._look.set()
            return
        before = self.queued
        while work := self._places.next():
            self._start(work)
        if self.queued != before:
            self._show_positions()

    async def _run(self, work: Work) -> None:
        work.begun = True
        terminal: e.Terminal | None = None
        try:
            if not work.released:
                writer = self._log.writer(work.claim)
                terminal = await self._attempts.make(work, writer)
            work.ending = True  # nothing interrupts what is left to be written
            if work.lost:
                return
            if terminal is not None:
                await end(self._log, work, writer, terminal)
            else:
                await give_up(self._log, work, worker=self._worker)
        except StaleFence:
            logger.warning("run %s has another worker now", work.claim.run_id)
        except Exception:  # one run must not take the others with it
            logger.exception("run %s could not be ended; it will be by its next worker", work.claim.run_id)
        finally:
            self._drop(work)
            self._next()
