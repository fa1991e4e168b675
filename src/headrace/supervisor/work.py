"""One run in this process: what has reached it, and how it is stopped.

Requests may come before there is an agent to take them; they wait here. No I/O: the supervisor decides and appends.
"""

import asyncio
from collections.abc import Callable

from headrace import events as e
from headrace.agent.port import RunContext
from headrace.log.ports import Claim
from headrace.state import RunState


class Work:
    """A claimed run, its task and its agent's context once there is one."""

    def __init__(self, claim: Claim, tenant: str, state: RunState, *, new_thread: bool, recovered: bool) -> None:
        self.claim = claim
        self.tenant = tenant
        self.state = state
        self.new_thread = new_thread
        self.recovered = recovered
        self.early: list[e.Event] = []  # requests that came before there was an agent to take them
        self.context: RunContext | None = None
        self.task: asyncio.Task[None] | None = None
        self.cancelled = state.cancel_requested
        self.released = False
        self.ending = False
        self.position = 0
        self.unsubscribe: Callable[[], None] = lambda: None

    def notify(self, record: e.Record) -> None:
        """A client's request has become durable."""
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
        if self.context is not None and not self.context.cancelling:
            self.context.cancelling = True
            self._interrupt()

    def release(self) -> None:
        """Leave the run to whoever claims it next."""
        self.released = True
        if self.context is not None:
            self.context.release()
        self._interrupt()

    def _interrupt(self) -> None:
        if self.task is not None and self.context is not None and not self.ending:
            self.task.cancel()


def deliver(context: RunContext, event: e.Event) -> None:
    """Give an agent what a client has asked for."""
    if isinstance(event, e.SteerReceived):
        context.steering.put_nowait(event)
    elif isinstance(event, e.InputReceived):
        context.answer_nowait(event)
