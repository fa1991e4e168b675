"""One run in this process: what has reached it, and how it is stopped.

Requests may come before there is an agent to take them; they wait here. No I/O: the supervisor decides and appends.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from headrace import events as e
from headrace.agent.port import RunContext
from headrace.log.ports import Claim
from headrace.state import RunState, initial


class Work:
    """A claimed run, its task, and its agent's context once there is one.

    `tenant` is None until it is read. `new_thread` says that no earlier run can be in its thread, `recovered` that
    another worker may have begun it. `released`: this worker leaves it unfinished; `lost`: another one has it already.
    `on_stopped` is called when it is lost, and when it is cancelled without having a task that could see it.
    """

    def __init__(
        self,
        claim: Claim,
        *,
        tenant: str | None = None,
        new_thread: bool = False,
        recovered: bool = False,
        on_stopped: "Callable[[Work], None] | None" = None,
    ) -> None:
        self.claim = claim
        self.tenant = tenant
        self.new_thread = new_thread
        self.recovered = recovered
        self.state = initial(claim.run_id)
        self.early: list[e.Event] = []  # requests that came before there was an agent to take them
        self.context: RunContext | None = None
        self.task: asyncio.Task[None] | None = None
        self.begun = False
        self.in_line = False  # a suspect that waits for its turn
        self.cancelled = False
        self.released = False
        self.lost = False
        self.ending = False
        self.position = 0
        self._on_stopped = on_stopped

    @property
    def waiting(self) -> bool:
        """Whether it keeps no place from others: a person may take days, and a suspect's turn is not now."""
        return self.in_line or (self.context is not None and self.context.waiting)

    def begin_with(self, state: RunState) -> None:
        """How the run stands, read after requests have begun to be listened for: some may be in both."""
        self.state = state
        self.cancelled = self.cancelled or state.cancel_requested

    def connect(self, context: RunContext) -> None:
        """Give the agent every request that came before it, also before a crash; later ones come by `notify`."""
        seen = {event.steer_id for event in self.early if isinstance(event, e.SteerReceived)}
        for steer in self.state.steers:
            if steer.status == "received" and steer.steer_id not in seen:
                mode: Any = steer.mode
                context.steering.put_nowait(e.SteerReceived(steer_id=steer.steer_id, text=steer.text, mode=mode))
        for event in self.early:
            deliver(context, event)
        self.early.clear()
        self.context = context
        if self.cancelled:
            self.cancel()

    def notify(self, record: e.Record) -> None:
        """A client's request has become durable (log.ports.Owner)."""
        if isinstance(record.event, e.CancelRequested):
            self.cancel()
        elif self.context is None:
            self.early.append(record.event)
        else:
            deliver(self.context, record.event)

    def unread_steers(self) -> list[e.SteerReceived]:
        """Take every steer that no turn has read."""
        early = [event for event in self.early if isinstance(event, e.SteerReceived)]
        self.early.clear()
        return early + (self.context.steering.take() if self.context else [])

    def cancel(self) -> None:
        """The agent is interrupted once: a second request must not cut its cleaning up."""
        self.cancelled = True
        if self.task is None:
            self._tell()
        elif self.context is None:
            if self.in_line:
                self._interrupt()
        elif not self.context.cancelling:
            self.context.cancelling = True
            self._interrupt()

    def release(self) -> None:
        """Leave the run to whoever claims it next. The agent is interrupted once, also where a client's cancel did so
        before: that one is then out of time."""
        if self.context is not None:
            self.context.release()
        self._interrupt()
        self.released = True

    def lose(self) -> None:
        """Another worker has the run (log.ports.Owner): stop at once, and write nothing."""
        self.lost = True
        self.release()
        self._tell()

    def _tell(self) -> None:
        if self._on_stopped is not None:
            self._on_stopped(self)

    def _interrupt(self) -> None:
        """Unless it has been released: then it cleans up. A task that is cancelled before its first step would never
        take any; it looks at `released` itself."""
        if self.task is not None and self.begun and not self.ending and not self.released:
            self.task.cancel()


def deliver(context: RunContext, event: e.Event) -> None:
    """Give an agent what a client has asked for."""
    if isinstance(event, e.SteerReceived):
        context.steering.put_nowait(event)
    elif isinstance(event, e.InputReceived):
        context.answer_nowait(event)
