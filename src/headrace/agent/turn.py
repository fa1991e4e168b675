"""One engine answer, from asking to `turn.finished`.

What the model says is emitted as it comes; a call starts the moment its arguments are whole. Before the first visible
token a failing engine is simply asked again, after it what was said is retracted first. A turn that has made a call is
never asked again: it ends where it broke, and the model goes on from the calls' results.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable

from headrace.agent.calls import Calls
from headrace.agent.port import RunContext
from headrace.engine.port import Chunk, Engine, Finish, ModelRequest, Text, Thinking, ToolCallPart
from headrace.errors import DeadlineExceeded, EngineDied, EngineError, EngineOverloaded, ToolCancelled
from headrace.events import TextDelta, TextRetracted, ThinkingDelta, TurnFinished, TurnStarted
from headrace.messages import Timing
from headrace.resilience.group import Group
from headrace.resilience.retry import Retry
from headrace.state import Turn, was_asked
from headrace.tools.assembly import Assembly, CallFragment, CallStarted, Step

_GATHER = 256  # pieces of text


class Speaker:
    """Asks for one turn. `group` owns the calls it makes; `closing` refuses them instead."""

    def __init__(
        self,
        context: RunContext,
        engine: Engine,
        calls: Calls,
        group: Group,
        *,
        turn: int,
        retry: Retry,
        stream_arguments: bool = False,
        closing: bool = False,
    ) -> None:
        self._context = context
        self._engine = engine
        self._calls = calls
        self._group = group
        self._turn = turn
        self._retry = retry
        self._stream_arguments = stream_arguments
        self._closing = closing
        self._began = asyncio.get_running_loop().time()
        self._first: float | None = None
        self._said: list[str] = []
        self._gathered: list[str] = []
        self._thought = False
        self._assembly = Assembly()
        self._finish: Finish | None = None
        self._interrupted = False

    async def speak(self, ask: Callable[[int], ModelRequest], *, begun: bool = False) -> Turn:
        """`ask` makes the request of an attempt (1, 2 …); `begun` says that `turn.started` is already there.

        Raises:
            EngineError: no attempt succeeded.
            DeadlineExceeded: the run's deadline passed while the model was speaking.
        """
        request = ask(1)
        if not begun:
            model = request.model or self._engine.model
            self._context.emit(TurnStarted(turn=self._turn, model=model, engine=self._engine.name))
        scope = asyncio.timeout_at(self._context.deadline)
        try:
            async with scope:
                self._context.steering.on_interrupt(lambda: self._cut(scope))
                await self._ask_until_answered(request, ask)
        except TimeoutError as exc:
            if not scope.expired():
                raise
            self._close_open("The answer was cut.")
            if not self._interrupted:
                self._finished("error")
                raise DeadlineExceeded("The run's deadline passed while the model was speaking.") from exc
            return self._finished("interrupted")
        except EngineError:
            self._close_open("The engine failed.")
            self._finished("error")
            raise
        except asyncio.CancelledError:
            if self._context.ending:
                self._close_open("The run was cancelled or its time was up.")
                self._finished("cancelled" if self._context.cancelling else "error")
            raise
        finally:
            self._context.steering.on_interrupt(None)
        return self._finished(self._finish.reason if self._finish else "error")

    async def _ask_until_answered(self, request: ModelRequest, ask: Callable[[int], ModelRequest]) -> None:
        for attempt in range(1, self._retry.attempts + 1):
            try:
                async with self._engine.stream(request) as chunks:
                    await self._listen(chunks)
                self._take(self._assembly.finish())
                return
            except EngineError as error:
                self._close_open("The engine failed before the arguments were whole.")
                if any(was_asked(call) for call in self._calls.of(self._turn)):
                    return
                wait = self._wait_after(error, attempt)
                if wait is None:
                    raise
                self._start_over(error)
                await asyncio.sleep(wait)
                request = ask(attempt + 1)

    async def _listen(self, chunks: AsyncIterator[Chunk]) -> None:
        """The hot path: per token one type test, one append, one emit. Raises EngineDied when no Finish came."""
        emit, said = self._context.emit, self._said
        async for first in chunks:
            self._first = asyncio.get_running_loop().time()
            if not self._take_chunk(first):
                return
            break
        async for chunk in chunks:
            if type(chunk) is Text:
                said.append(chunk.text)
                emit(TextDelta(text=chunk.text))
                if len(said) >= _GATHER:
                    self._gather()
            elif not self._take_chunk(chunk):
                return
        raise EngineDied(f"The engine {self._engine.name} ended its answer without saying why.")

    def _gather(self) -> None:
        """Join the last pieces: a str each would be 60 bytes per token of a live run, in an io.StringIO too."""
        self._gathered.append("".join(self._said))
        self._said.clear()

    def _take_chunk(self, chunk: Chunk) -> bool:
        """False when it was the last one."""
        if isinstance(chunk, Text):
            self._said.append(chunk.text)
            self._context.emit(TextDelta(text=chunk.text))
        elif isinstance(chunk, Thinking):
            self._thought = True
            self._context.emit(ThinkingDelta(text=chunk.text))
        elif isinstance(chunk, ToolCallPart):
            self._take(self._assembly.add(chunk.index, name=chunk.name, arguments=chunk.arguments))
        else:
            self._finish = chunk
            return False
        return True

    def _take(self, steps: list[Step]) -> None:
        for step in steps:
            if isinstance(step, CallStarted):
                self._calls.start(step.call_id, step.name, self._turn)
            elif isinstance(step, CallFragment):
                if self._stream_arguments:
                    self._calls.fragment(step.call_id, step.text)
            elif self._closing:
                self._calls.refuse(step, self._turn)
            else:
                self._calls.end(step, self._turn, self._group)

    def _wait_after(self, error: EngineError, attempt: int) -> float | None:
        """Seconds before the next attempt, or None when there shall be none."""
        asked = error.retry_after if isinstance(error, EngineOverloaded) else None
        wait = self._retry.wait(attempt, dice=random.random(), asked=asked) if error.retryable else None
        left = self._context.time_left()
        return None if wait is None or (left is not None and wait >= left) else wait

    def _start_over(self, error: EngineError) -> None:
        if self._said or self._gathered or self._thought:
            self._context.emit(TextRetracted(turn=self._turn, reason=error.code))
        self._said.clear()
        self._gathered.clear()
        self._thought = False
        self._first = None
        self._assembly = Assembly()

    def _close_open(self, why: str) -> None:
        for call_id in self._assembly.open_calls():
            self._calls.close(call_id, ToolCancelled(why))

    def _cut(self, scope: asyncio.Timeout) -> None:
        """A steer interrupts: end the stream as if its time were up."""
        if not self._interrupted:
            self._interrupted = True
            scope.reschedule(asyncio.get_running_loop().time())

    def _finished(self, reason: str) -> Turn:
        finish = self._finish or Finish(reason="stop")
        now = asyncio.get_running_loop().time()
        timing = Timing(
            queued_ms=finish.timing.queued_ms,
            first_token_ms=None if self._first is None else round((self._first - self._began) * 1000, 3),
            total_ms=round((now - self._began) * 1000, 3),
        )
        self._context.emit(TurnFinished(turn=self._turn, finish_reason=reason, usage=finish.usage, timing=timing))
        return Turn(
            turn=self._turn,
            model="",
            engine=self._engine.name,
            started_seq=0,
            text="".join((*self._gathered, *self._said)),
            finish_reason=reason,
            usage=finish.usage,
            timing=timing,
        )
