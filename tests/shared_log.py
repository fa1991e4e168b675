"""Several supervisors on one log in memory, as several servers on one Redis would be: quick, and every step by hand."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from headrace import events as e
from headrace.agent.port import AgentPort
from headrace.log.memory import MemoryLog
from headrace.log.ports import NewRun
from headrace.runs import Runs, StartRun, new_id
from headrace.supervisor import Supervisor
from recording import started


class Shared:
    """A log and the supervisors that have been opened on it."""

    def __init__(self, log: MemoryLog | None = None) -> None:
        self.log = log or MemoryLog()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Shared":
        await self._stack.enter_async_context(self.log)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def worker(self, name: str, *agents: AgentPort, **settings: Any) -> Supervisor:
        supervisor = Supervisor(
            log=self.log, agents={agent.name: agent for agent in agents}, engine=None, worker=name, **settings
        )
        return await self._stack.enter_async_context(supervisor)

    async def start(self, worker: Supervisor, question: str = "x", *, agent: str = "agent") -> str:
        """A client's start at one of them."""
        runs = Runs(log=self.log, agents={agent: ""}, launch=worker.launch)
        return await runs.start(StartRun(input=started(question).input, agent=agent), tenant="default")

    async def leave(self, question: str = "x", *, tenant: str = "default", agent: str = "agent") -> str:
        """A run that nobody works on."""
        run_id = new_id()
        begun = e.RunStarted(agent=agent, thread_id=run_id, input=started(question).input)
        await self.log.create(NewRun(run_id=run_id, tenant=tenant), begun)
        return run_id

    async def crash(self, worker: Supervisor, *run_ids: str) -> None:
        """What a worker that is killed leaves behind: it writes nothing more, and its runs are free."""
        claims = await asyncio.gather(*(self.log.claim(run_id) for run_id in run_ids))
        await worker.drain(0)
        for claim in claims:
            await self.log.release(claim)

    async def events(self, run_id: str) -> list[e.AnyEvent]:
        return [record.event for record in await self.log.read(run_id)]

    async def kinds(self, run_id: str) -> list[str]:
        return [e.event_type(event) for event in await self.events(run_id)]

    async def ended(self, run_id: str) -> list[e.AnyEvent]:
        """Everything, once the run has ended."""
        woken = asyncio.Event()
        stop = self.log.subscribe(run_id, woken.set)
        while not (await self.log.head(run_id)).closed:
            await woken.wait()
            woken.clear()
        stop()
        return await self.events(run_id)
