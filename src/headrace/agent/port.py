"""What an agent is, and what it is given for one run.

An agent never sees the log, a client or a connection. It reads what has happened (`context.state`), appends what
happens (`context.emit`, `context.commit`), and is cancelled like any coroutine. The supervisor writes `run.started`
and the one terminal record.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from headrace.engine.port import Engine
from headrace.errors import AgentFailed, DeadlineExceeded
from headrace.events import (
    REQUESTS,
    TERMINALS,
    Event,
    InputReceived,
    InputRequested,
    RunFinished,
    RunRecovered,
    RunReleased,
    RunStarted,
    SteerApplied,
    SteerReceived,
    event_type,
)
from headrace.messages import Message
from headrace.state import RunState

_NOT_ITS_OWN = frozenset((RunStarted, RunRecovered, RunReleased, *REQUESTS, *TERMINALS))
"""What the supervisor and clients write; from an agent it would end, rename or cancel the run behind their backs."""


class Emit(Protocol):
    """The owner's way into the log (`log.ports.Writer` fits)."""

    @property
    def seq(self) -> int: ...

    def emit(self, event: Event) -> None: ...

    async def commit(self, *events: Event) -> None: ...


class _Released:
    """The way into the log of a worker that no longer owns the run: there is none."""

    def __init__(self, seq: int) -> None:
        self.seq = seq

    def emit(self, event: Event) -> None:
        pass

    async def commit(self, *events: Event) -> None:
        pass


class Steering:
    """The steers of one run that no turn has read yet."""

    def __init__(self) -> None:
        self._waiting: list[SteerReceived] = []
        self._interrupt: Callable[[], None] | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def interrupts(self) -> bool:
        """Whether one of them wants the model cut."""
        return any(steer.mode == "interrupt" for steer in self._waiting)

    def put_nowait(self, steer: SteerReceived) -> None:
        """Called by the supervisor. An `interrupt` cuts the model if one is speaking."""
        self._waiting.append(steer)
        if steer.mode == "interrupt" and self._interrupt is not None:
            self._interrupt()

    def on_interrupt(self, cut: Callable[[], None] | None) -> None:
        """`cut` is called for each `interrupt` steer from now on; None while no model is speaking."""
        self._interrupt = cut

    def take(self) -> list[SteerReceived]:
        """All waiting steers. Whoever takes one must emit `steer.applied` for it."""
        taken, self._waiting = self._waiting, []
        return taken


class RunContext:
    """One run, as its agent sees it.

    `state` is the run folded up to the moment the agent starts: after a restart it holds what had already happened,
    and an agent with `resumable = True` goes on from there. `history` is the conversation of the thread's earlier
    runs. `engine` is the server's default. `deadline` is loop time, None for no limit.

    `cancelling` is set before the agent's task is cancelled because a client wants the run to end. `on_waiting` is
    called when a person's answer begins to be awaited.
    """

    def __init__(
        self,
        *,
        state: RunState,
        history: tuple[Message, ...],
        out: Emit,
        engine: Engine | None,
        tenant: str = "default",
        deadline: float | None = None,
    ) -> None:
        self.run_id = state.run_id
        self.state = state
        self.history = history
        self.engine = engine
        self.tenant = tenant
        self.deadline = deadline
        self.steering = Steering()
        self.cancelling = False
        self._out = out
        self.on_waiting: Callable[[], None] | None = None
        self._answers: dict[str, asyncio.Future[Any]] = {}

    @property
    def scope(self) -> str | None:
        """Who may learn of this run by what an engine remembers: its tenant, or everybody where there are none."""
        return None if self.tenant == "default" else self.tenant

    @property
    def input(self) -> tuple[Message, ...]:
        return self.state.input

    @property
    def question(self) -> str:
        """The text of the last user message."""
        return next((m.content for m in reversed(self.state.input) if m.role == "user"), "")

    @property
    def seq(self) -> int:
        return self._out.seq

    def emit(self, event: Event) -> None:
        """Append without waiting; in order, durable before anybody sees it.

        Raises:
            AgentFailed: the event is not an agent's to write. Return a RunFinished, or raise, to end the run.
        """
        if type(event) in _NOT_ITS_OWN:
            raise _not_its_own(event)
        self._out.emit(event)

    async def commit(self, *events: Event) -> None:
        """Append and wait until this and everything before it is durable. Raises as `emit`."""
        for event in events:
            if type(event) in _NOT_ITS_OWN:
                raise _not_its_own(event)
        await self._out.commit(*events)

    def time_left(self) -> float | None:
        """Seconds until the run's deadline, never negative; None for no limit.

        Less than a millisecond is nothing: a timer may fire that much too early.
        """
        if self.deadline is None:
            return None
        left = self.deadline - asyncio.get_running_loop().time()
        return left if left > 0.001 else 0.0

    @property
    def ending(self) -> bool:
        """Whether a cancellation ends the run, because a client wants it or its time is up.

        Otherwise it takes the run from this worker only (a drain, a lost claim), and another one goes on: then record
        nothing.
        """
        return self.cancelling or (self.time_left() == 0.0 and not isinstance(self._out, _Released))

    @property
    def stopped(self) -> bool:
        """True once nothing more may be started here, although the cancellation may yet be on its way."""
        return self.cancelling or isinstance(self._out, _Released)

    @property
    def waiting(self) -> bool:
        """True while a person's answer is awaited."""
        return any(not answer.done() for answer in self._answers.values())

    def release(self) -> None:
        """Called by the supervisor before it gives the run to another worker: nothing more of this one is written."""
        self._out = _Released(self._out.seq)

    def require_time(self) -> None:
        """Raises DeadlineExceeded when nothing is left."""
        if self.time_left() == 0.0:
            raise DeadlineExceeded("The run's deadline has passed.", hint="Ask for less, or raise run.deadline.")

    def take_steers(self) -> list[Message]:
        """The waiting steers as user messages, each recorded as applied. Call it right before a turn starts."""
        steers = self.steering.take()
        for steer in steers:
            self.emit(SteerApplied(steer_id=steer.steer_id, seq=self.seq))
        return [Message(role="user", content=steer.text) for steer in steers]

    async def ask(self, request: InputRequested) -> Any:
        """Wait for a person. After a restart an answer that is already there is returned at once."""
        known = next((i for i in self.state.inputs if i.input_id == request.input_id), None)
        if known is not None and known.received:
            return known.value
        answer = self._answers.setdefault(request.input_id, asyncio.get_running_loop().create_future())
        if known is None:
            await self.commit(request)
        if not answer.done() and self.on_waiting is not None:
            self.on_waiting()
        return await answer

    def answer_nowait(self, received: InputReceived) -> None:
        """Called by the supervisor when a client has answered."""
        loop = asyncio.get_running_loop()
        answer = self._answers.setdefault(received.input_id, loop.create_future())
        if not answer.done():
            answer.set_result(received.value)


def _not_its_own(event: Event) -> AgentFailed:
    return AgentFailed(
        f"The agent wrote {event_type(event)}, which is not its to write.",
        hint="Return a RunFinished or raise an error to end the run.",
    )


class AgentPort(Protocol):
    """What the supervisor runs.

    An agent that does nothing in the world before its first `context.commit` has returned may say so by
    `commits_first = True`: then it begins before its run is durable, which saves a write before its first token. A
    subclass with a `run` of its own has to say so again.
    """

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def resumable(self) -> bool:
        """True if `run` can go on from a `state` in which things have already happened."""
        ...

    async def run(self, context: RunContext) -> RunFinished:
        """Do the run and say how it ended; the supervisor appends what is returned.

        On cancellation with `context.ending`: close what is open (every call gets a `tool.result`, every turn its
        `turn.finished`); without it record nothing. Let CancelledError through. A HeadraceError becomes `run.error`
        with its code; anything else is `agent_failed`, with the traceback in the server's log only.
        """
        ...
