"""Which runs this process works on: claim, start, cancel, hand over, drain.

Every run ends with exactly one terminal record, and only the supervisor writes it, whatever its agent does. A run
that this process must leave unfinished is released: it writes nothing more, and whoever claims it next goes on.
"""

import asyncio
import logging
import os
import platform
from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec

from headrace import events as e
from headrace.agent.port import AgentPort, RunContext
from headrace.engine.port import Engine
from headrace.errors import (
    AgentFailed,
    DeadlineExceeded,
    HeadraceError,
    LogUnavailable,
    RunEnded,
    RunInterrupted,
    SeqConflict,
    StaleFence,
)
from headrace.log.ports import Claim, Log, Writer
from headrace.messages import Message
from headrace.state import RunState, conversation, without_stand_ins
from headrace.supervisor.work import Work, deliver

logger = logging.getLogger("headrace.supervisor")

MAX_HISTORY_RUNS = 50
"""The latest runs of a thread that an agent is given as its conversation."""

END_RETRY_S = (0.05, 0.2, 1.0, 3.0)
"""Waits between attempts to store a terminal record that the log refuses; the last one repeats."""


class Supervisor:
    """An async context manager: leaving it releases what is still running.

    `max_active` runs work at the same time, the others wait in order; those that wait for a person do not count.
    `deadline` is seconds per run, None for no limit. `worker` names this process in `run.recovered`.
    """

    def __init__(
        self,
        *,
        log: Log,
        agents: Mapping[str, AgentPort],
        engine: Engine | None,
        max_active: int = 256,
        deadline: float | None = None,
        worker: str | None = None,
    ) -> None:
        self._log = log
        self._agents = agents
        self._engine = engine
        self._max_active = max_active
        self._deadline = deadline
        self._worker = worker or f"{platform.node()}:{os.getpid()}"
        self._group = asyncio.TaskGroup()
        self._active: set[Work] = set()
        self._queue: deque[Work] = deque()

    @property
    def active(self) -> int:
        """Runs being worked on."""
        return len(self._active)

    @property
    def queued(self) -> int:
        """Runs waiting for a place."""
        return len(self._queue)

    @property
    def _has_place(self) -> bool:
        """A run that waits for a person keeps nobody else waiting: it may do so for days."""
        if len(self._active) < self._max_active:
            return True
        return sum(not (w.context and w.context.waiting) for w in self._active) < self._max_active

    async def __aenter__(self) -> "Supervisor":
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        self._release_all()
        await self._group.__aexit__(None, None, None)

    def launch(self, claim: Claim, tenant: str, state: RunState, *, new_thread: bool) -> None:
        """Work on a run that this process has claimed (runs.Launch)."""
        self._take(Work(claim, tenant, state, new_thread=new_thread, recovered=False))

    async def recover(self) -> int:
        """Claim every unfinished run and go on with it; how many there were. Called once, at start.

        A run that cannot be read stays where it is: one of them must not keep the server from starting.
        """
        claims = await self._log.adopt(1_000_000)
        for claim in claims:
            try:
                await self._recover(claim)
            except Exception:
                logger.exception("run %s cannot be gone on with", claim.run_id)
        return len(claims)

    async def _recover(self, claim: Claim) -> None:
        tenant = await self._log.owner(claim.run_id) or "default"
        state = await self._log.state(claim.run_id)
        self._take(Work(claim, tenant, state, new_thread=False, recovered=True))

    async def drain(self, grace: float) -> None:
        """Let runs finish for `grace` seconds. Those that wait for a person or a place are not waited for."""
        while self._queue:
            self._drop(self._queue.popleft())
        deadline = asyncio.get_running_loop().time() + grace
        while tasks := [w.task for w in self._active if w.task and not (w.context and w.context.waiting)]:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                break
            await asyncio.wait(tasks, timeout=min(left, 0.1), return_when=asyncio.FIRST_COMPLETED)
        self._release_all()

    def _release_all(self) -> None:
        while self._queue:
            self._drop(self._queue.popleft())
        for work in self._active:
            work.release()

    def _take(self, work: Work) -> None:
        work.unsubscribe = self._log.subscribe_requests(work.claim.run_id, work.notify)
        if self._has_place:
            self._start(work)
        else:
            self._queue.append(work)
            self._show_positions()

    def _start(self, work: Work) -> None:
        self._active.add(work)
        work.task = self._group.create_task(self._run(work))

    def _drop(self, work: Work) -> None:
        work.unsubscribe()
        self._active.discard(work)

    def _show_positions(self) -> None:
        """Tell the waiting runs where they stand: each of the first ten, every tenth of the others."""
        for position, work in enumerate(self._queue, 1):
            if position != work.position and (position <= 10 or position % 10 == 0 or not work.position):
                work.position = position
                try:
                    self._log.writer(work.claim).emit(e.RunQueued(position=position))
                except HeadraceError:
                    logger.warning("run %s cannot be told its place in the queue", work.claim.run_id)

    def _next(self) -> None:
        if self._queue and self._has_place:
            self._start(self._queue.popleft())
            self._show_positions()

    async def _run(self, work: Work) -> None:
        writer = self._log.writer(work.claim)
        try:
            terminal = await self._outcome(work, writer)
            work.ending = True
            if terminal is not None:
                await self._end(work, writer, terminal)
        except StaleFence:
            logger.warning("run %s has another owner now", work.claim.run_id)
        except Exception:  # one run must not take the others with it
            logger.exception("run %s could not be ended; it will be at the next start", work.claim.run_id)
        finally:
            self._drop(work)
            self._next()

    async def _outcome(self, work: Work, writer: Writer) -> e.Terminal | None:
        """Run the agent to its end, whatever that is. None: the run was released, not ended.

        A StaleFence is no exception: if it is true, the terminal record meets it again.
        """
        if work.cancelled:
            return e.RunFinished(status="cancelled", finish_reason="cancelled")
        try:
            return await self._work_on(work, writer)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                return self._failed(work)  # it awaited something that was cancelled: nobody cancelled the run
            if not (work.released or work.cancelled):
                raise
            task.uncancel()
            return None if work.released else e.RunFinished(status="cancelled", finish_reason="cancelled")
        except HeadraceError as error:
            logger.info("run %s: %s: %s", work.claim.run_id, error.code, error.message)
            return _error(error)
        except KeyboardInterrupt:
            raise
        except BaseException:  # sys.exit() in an agent ends its run, not the server
            return self._failed(work)

    def _failed(self, work: Work) -> e.RunErrored:
        """Call it where the exception is being handled: the log gets its traceback, the client does not."""
        logger.exception("run %s: its agent failed", work.claim.run_id)
        return _error(AgentFailed("The agent failed.", hint="The server's log has the traceback."))

    async def _work_on(self, work: Work, writer: Writer) -> e.Terminal:
        agent = self._agents.get(work.state.agent)
        if agent is None:
            raise RunInterrupted(f"There is no agent {work.state.agent!r} any more.", hint="Start the run again.")
        begun = any(work.state.turns) or any(work.state.tool_calls) or any(work.state.nodes)
        if work.recovered:
            writer.emit(e.RunRecovered(worker=self._worker, after_seq=work.state.seq))
            if begun and not agent.resumable:
                raise RunInterrupted("The server stopped in the middle of this run.", hint="Start the run again.")
        loop_time = asyncio.get_running_loop().time()
        context = RunContext(
            state=work.state,
            history=() if work.new_thread else await self._history(work),
            out=writer,
            engine=self._engine,
            tenant=work.tenant,
            deadline=None if self._deadline is None else loop_time + self._deadline,
        )
        self._connect(work, context)
        try:
            async with asyncio.timeout_at(context.deadline):
                return _finished(await agent.run(context))
        except TimeoutError as exc:
            if context.time_left() != 0.0:
                raise  # somebody else's timeout: a bug in the agent
            raise DeadlineExceeded(
                f"The run took longer than {self._deadline:g} s.", hint="Ask for less, or raise run.deadline."
            ) from exc

    def _connect(self, work: Work, context: RunContext) -> None:
        """Give the agent every request that came before it, also before a crash; later ones come through `notify`."""
        seen = {event.steer_id for event in work.early if isinstance(event, e.SteerReceived)}
        for steer in work.state.steers:
            if steer.status == "received" and steer.steer_id not in seen:
                mode: Any = steer.mode
                context.steering.put_nowait(e.SteerReceived(steer_id=steer.steer_id, text=steer.text, mode=mode))
        for event in work.early:
            deliver(context, event)
        work.early.clear()
        work.context = context
        context.on_waiting = self._next
        if work.cancelled:
            work.cancel()

    async def _history(self, work: Work) -> tuple[Message, ...]:
        """What was said in the thread before this run."""
        thread_id = work.state.thread_id
        infos = await self._log.runs(work.tenant, thread_id=thread_id, limit=MAX_HISTORY_RUNS)
        earlier = [info.run_id for info in reversed(infos) if info.run_id < work.claim.run_id and info.ended_ts]
        states = [await self._log.state(run_id) for run_id in earlier]
        said = [message for state in states for message in conversation(state)]
        return without_stand_ins(said, work.state.input)

    async def _end(self, work: Work, writer: Writer, terminal: e.Terminal) -> None:
        """Append the terminal record, and give back the steers that no turn has read. Tries until it is stored."""
        attempt = 0
        while True:
            try:
                await self._append_end(work, writer, terminal)
                return
            except (SeqConflict, RunEnded):
                if (await self._log.head(work.claim.run_id)).closed:
                    return
                await asyncio.sleep(0)  # what stands in the way may not be stored yet: it is at the end of the tick
            except LogUnavailable as error:
                terminal = _error(error)
                logger.error("run %s cannot be ended yet: %s", work.claim.run_id, error.message)
                await asyncio.sleep(END_RETRY_S[min(attempt, len(END_RETRY_S) - 1)])
                attempt += 1
                if work.released:
                    return

    async def _append_end(self, work: Work, writer: Writer, terminal: e.Terminal) -> None:
        """Nothing is folded here unless the run was cancelled: a run of a million records ends as fast as another."""
        run_id = work.claim.run_id
        if isinstance(terminal, e.RunFinished) and terminal.status == "cancelled":
            await writer.commit()  # what the agent said while it cleaned up is not stored yet, and part of the output
            state = await self._log.state(run_id)
            terminal = msgspec.structs.replace(terminal, output=state.text, usage=state.usage)
        unread = work.unread_steers()
        returned = [e.SteerReturned(steer_id=s.steer_id, reason="the run has ended") for s in unread]
        try:
            await self._log.append(run_id, [*returned, terminal], expected_seq=writer.seq, fence=work.claim.fence)
        except HeadraceError:
            work.early += unread  # the next attempt gives them back
            raise


def _finished(returned: object) -> e.RunFinished:
    """What an agent has returned, if the log can hold it."""
    if not isinstance(returned, e.RunFinished):
        raise AgentFailed(
            f"The agent returned {type(returned).__name__}.", hint="It must return a RunFinished, or raise."
        )
    try:
        return msgspec.json.decode(msgspec.json.encode(returned), type=e.RunFinished)
    except (msgspec.ValidationError, TypeError, ValueError) as exc:
        raise AgentFailed(f"The agent returned a RunFinished that cannot be recorded: {exc}.") from exc


def _error(error: HeadraceError) -> e.RunErrored:
    hint = None if error.hint is None else _printable(error.hint)
    return e.RunErrored(code=error.code, message=_printable(error.message), retryable=error.retryable, hint=hint)


def _printable(text: object) -> str:
    """An agent's error may hold anything; a record holds Unicode."""
    return str(text).encode("utf-8", "backslashreplace").decode()
