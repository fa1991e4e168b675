"""One worker's attempt at a run: from what the log holds to a terminal record, or to leaving it.

Whatever an agent does, something is decided here. Nothing is ended here: the supervisor writes the terminal record.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from headrace import events as e
from headrace.agent.port import AgentPort, Emit, RunContext
from headrace.engine.port import Engine
from headrace.errors import AgentFailed, DeadlineExceeded, HeadraceError, RunInterrupted
from headrace.log.ports import Log, Writer
from headrace.state import RunState, crashes_so_far
from headrace.supervisor.past import history, read_run
from headrace.supervisor.suspects import Suspects, Watched
from headrace.supervisor.terminal import CANCELLED, errored, finished, poison
from headrace.supervisor.work import Work

logger = logging.getLogger("headrace.supervisor")


class Attempts:
    """How this process works on runs. `worker` names it in the records; `deadline` is in seconds, None for no limit.

    A run that has lost `max_crashes` workers in a row without getting further is not tried again.
    """

    def __init__(
        self,
        *,
        log: Log,
        agents: Mapping[str, AgentPort],
        engine: Engine | None,
        deadline: float | None,
        worker: str,
        max_crashes: int,
        suspects: Suspects,
    ) -> None:
        self._log = log
        self._agents = agents
        self._engine = engine
        self._deadline = deadline
        self._worker = worker
        self._max_crashes = max_crashes
        self._suspects = suspects

    async def make(self, work: Work, writer: Writer) -> e.Terminal | None:
        """How the run ends. None: this worker has left it unfinished.

        A StaleFence in the agent is no exception: if it is true, the terminal record meets it again. Between the task
        and its agent there are few coroutines: each token wakes them all, and each waiting run keeps them.

        Raises:
            LogCorrupt: the run cannot be read.
        """
        try:
            await read_run(self._log, work)
        except asyncio.CancelledError:
            return _stopped(work)
        if work.cancelled:
            return CANCELLED
        try:
            if work.recovered:
                return await self._go_on(work, writer)
            return await self._in_time(work, writer)
        except asyncio.CancelledError:
            return _stopped(work) if _is_cancelled() else _failed(work)  # it may have awaited something cancelled
        except HeadraceError as error:
            logger.info("run %s: %s: %s", work.claim.run_id, error.code, error.message)
            return errored(error)
        except KeyboardInterrupt:
            raise
        except BaseException:  # sys.exit() in an agent ends its run, not the server
            return _failed(work)

    async def _go_on(self, work: Work, writer: Writer) -> e.Terminal:
        async with self._recovered(work, writer, self._agent(work)) as out:
            return await self._in_time(work, out)

    async def _in_time(self, work: Work, out: Emit) -> e.RunFinished:
        agent = self._agent(work)
        context = await self._context(work, out)
        try:
            async with asyncio.timeout_at(context.deadline):
                return finished(await agent.run(context))
        except TimeoutError as exc:
            if context.time_left() != 0.0:
                raise  # somebody else's timeout: a bug in the agent
            raise DeadlineExceeded(
                f"The run took longer than {self._deadline:g} s.", hint="Ask for less, or raise run.deadline."
            ) from exc

    def _agent(self, work: Work) -> AgentPort:
        agent = self._agents.get(work.state.agent)
        if agent is None:
            raise RunInterrupted(f"There is no agent {work.state.agent!r} any more.", hint="Start the run again.")
        return agent

    async def _context(self, work: Work, out: Emit) -> RunContext:
        """What the agent is given; whatever reaches the run from now on goes to it."""
        context = RunContext(
            state=work.state,
            history=() if work.new_thread else await history(self._log, work),
            out=out,
            engine=self._engine,
            tenant=work.tenant or "default",
            deadline=None if self._deadline is None else asyncio.get_running_loop().time() + self._deadline,
        )
        context.on_waiting = lambda: self._waits(out)
        work.connect(context)
        return context

    @asynccontextmanager
    async def _recovered(self, work: Work, writer: Writer, agent: AgentPort) -> AsyncIterator[Emit]:
        """Say that another worker goes on, if it may. `run.recovered` is durable before anything else
        happens: it is what the next worker counts crashes by."""
        crashes = crashes_so_far(work.state)
        if 0 < crashes == self._max_crashes - 1:
            async with self._suspects.alone(work, writer) as watched:
                await self._announce(work, writer, agent, crashes)
                yield watched
        else:
            await self._announce(work, writer, agent, crashes)
            yield writer

    async def _announce(self, work: Work, writer: Writer, agent: AgentPort, crashes: int) -> None:
        await writer.commit(e.RunRecovered(worker=self._worker, after_seq=work.state.seq))
        if crashes >= self._max_crashes:
            raise poison(work.state, crashes)
        if _has_begun(work.state) and not agent.resumable:
            raise RunInterrupted("The server stopped in the middle of this run.", hint="Start the run again.")

    def _waits(self, out: Emit) -> None:
        if isinstance(out, Watched):
            out.let_go()
        self._suspects.changed()


def _has_begun(state: RunState) -> bool:
    return any(state.turns) or any(state.tool_calls) or any(state.nodes)


def _is_cancelled() -> bool:
    """Whether it is this task that was cancelled, and not something that it awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _stopped(work: Work) -> e.Terminal | None:
    """What a cancellation amounts to; call it where it is being handled. One that nobody here asked for goes on."""
    task = asyncio.current_task()
    if task is None or not task.cancelling() or not (work.released or work.cancelled):
        raise
    while task.uncancel():
        pass
    return None if work.released else CANCELLED


def _failed(work: Work) -> e.RunErrored:
    """Call it where the exception is being handled: the log gets its traceback, the client does not."""
    logger.exception("run %s: its agent failed", work.claim.run_id)
    return errored(AgentFailed("The agent failed.", hint="The server's log has the traceback."))
