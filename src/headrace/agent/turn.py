"""One engine answer, from asking to `turn.finished`.

What the model says is emitted as it comes; a call starts the moment its arguments are whole. Before the first visible
token a failing engine is simply asked again. After it the answer goes on from what was said where that is possible
(`continuation.py`), and otherwise what was said is retracted first. It is the same when another worker has begun the
turn. A turn that has made a call is never asked again: it ends where it broke, and the model goes on from the calls'
results.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable

import msgspec

from headrace.agent.calls import Calls
from headrace.agent.continuation import GoOn, go_on
from headrace.agent.port import RunContext
from headrace.agent.spoken import GATHER, Spoken
from headrace.engine.port import Chunk, Engine, Finish, ModelRequest, Queued, Routed, Text, Thinking, ToolCallPart
from headrace.errors import (
    ContextOverflow,
    DeadlineExceeded,
    EngineDied,
    EngineError,
    EngineOverloaded,
    EngineRejected,
    ToolCancelled,
)
from headrace.events import (
    RouteChosen,
    RunQueued,
    TextDelta,
    TextRetracted,
    ThinkingDelta,
    TurnContinued,
    TurnFinished,
    TurnStarted,
)
from headrace.messages import Timing, Usage
from headrace.resilience.group import Group
from headrace.resilience.retry import Retry
from headrace.state import Turn, was_asked
from headrace.tools.assembly import Assembly, CallFragment, CallStarted, Step

Ask = Callable[[int], ModelRequest]
"""The request of an attempt (1, 2 …) at the whole answer."""


class Speaker:
    """Asks for one turn. `group` owns the calls it makes; `closing` refuses them instead; `go_on` decides how a cut
    answer goes on, if the engine can at all."""

    def __init__(
        self,
        context: RunContext,
        engine: Engine,
        calls: Calls,
        group: Group,
        *,
        turn: int,
        retry: Retry,
        go_on: GoOn = go_on,
        stream_arguments: bool = False,
        closing: bool = False,
    ) -> None:
        self._context = context
        self._engine = engine
        self._calls = calls
        self._group = group
        self._turn = turn
        self._retry = retry
        self._go_on = go_on
        self._continues = True
        self._stream_arguments = stream_arguments
        self._closing = closing
        self._began = asyncio.get_running_loop().time()
        self._first: float | None = None
        self._spoken = Spoken()
        self._assembly = Assembly()
        self._finish: Finish | None = None
        self._interrupted = False
        self._queued = False  # as far as clients know
        self._routed: str | None = None  # the model that answers, where it is not the one that was asked

    async def speak(self, ask: Ask, *, begun: Turn | None = None) -> Turn:
        """`begun` is what is recorded of the turn, when another worker has begun it.

        Raises:
            EngineError: no attempt succeeded.
            DeadlineExceeded: the run's deadline passed while the model was speaking.
        """
        request = self._begin(ask(1), begun)
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

    def _begin(self, request: ModelRequest, begun: Turn | None) -> ModelRequest | Finish:
        """Take up what is recorded of the turn, or record that it begins."""
        model = request.model or self._engine.model
        if begun is None:
            self._context.emit(TurnStarted(turn=self._turn, model=model, engine=self._engine.name))
            return request
        self._spoken.take_up(begun.text, tokens=begun.text_deltas, thought=bool(begun.thinking))
        state = self._context.state
        self._queued = bool(state.queue_position)
        replaced = any(route.fallback_of for route in state.routes)
        same = (begun.model, begun.engine) == (model, self._engine.name) and not replaced
        # Once text was retracted, nobody knows any more in how many tokens the rest was said.
        self._continues = self._continues and same and not begun.retracted
        return self._further(request, "recovered")

    async def _ask_until_answered(self, request: ModelRequest | Finish, ask: Ask) -> None:
        attempt = 1
        while not isinstance(request, Finish):
            try:
                async with self._engine.stream(request) as chunks:
                    await self._listen(chunks)
                self._take(self._assembly.finish())
                return
            except EngineError as error:
                self._close_open("The engine failed before the arguments were whole.")
                if any(was_asked(call) for call in self._calls.of(self._turn)):
                    return
                wait = self._wait_after(error, attempt, request)
                if wait is None:
                    raise
                attempt += 1
                request = self._further(ask(attempt), error.code)
                await asyncio.sleep(wait)
        self._finish = request

    async def _listen(self, chunks: AsyncIterator[Chunk]) -> None:
        """The hot path: per token one type test, one append, one emit. Raises EngineDied when no Finish came."""
        emit, pieces = self._context.emit, self._spoken.pieces
        async for first in chunks:
            if isinstance(first, Queued | Routed):
                self._note(first)
                continue
            if self._queued:  # before an attempt that failed, or by a worker that was lost
                self._note(Queued(0))
            if self._first is None:
                self._first = asyncio.get_running_loop().time()
            if not self._take_chunk(first):
                return
            break
        async for chunk in chunks:
            if type(chunk) is Text:
                pieces.append(chunk.text)
                emit(TextDelta(text=chunk.text))
                if len(pieces) >= GATHER:
                    self._spoken.gather()
            elif not self._take_chunk(chunk):
                return
        raise EngineDied(f"The engine {self._engine.name} ended its answer without saying why.")

    def _take_chunk(self, chunk: Chunk) -> bool:
        """False when it was the last one."""
        if isinstance(chunk, Text):
            self._spoken.pieces.append(chunk.text)
            self._context.emit(TextDelta(text=chunk.text))
        elif isinstance(chunk, Thinking):
            self._spoken.thought = True
            self._context.emit(ThinkingDelta(text=chunk.text))
        elif isinstance(chunk, ToolCallPart):
            self._take(self._assembly.add(chunk.index, name=chunk.name, arguments=chunk.arguments))
        elif isinstance(chunk, Queued | Routed):
            self._note(chunk)
        else:
            self._finish = chunk
            return False
        return True

    def _note(self, chunk: Queued | Routed) -> None:
        """What happens to the request before the model speaks."""
        if isinstance(chunk, Queued):
            self._queued = chunk.position > 0
            self._context.emit(RunQueued(position=chunk.position))
            return
        self._routed = chunk.model
        self._context.emit(RouteChosen(model=chunk.model, why=chunk.why, fallback_of=chunk.fallback_of))

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

    def _wait_after(self, error: EngineError, attempt: int, request: ModelRequest) -> float | None:
        """Seconds before the next attempt, or None when there shall be none."""
        if request.continued is not None and isinstance(error, EngineRejected | ContextOverflow) and self._continues:
            self._continues = False  # it refuses to go on: the whole answer it may still give
            return 0.0
        asked = error.retry_after if isinstance(error, EngineOverloaded) else None
        wait = self._retry.wait(attempt, dice=random.random(), asked=asked) if error.retryable else None
        left = self._context.time_left()
        return None if wait is None or (left is not None and wait >= left) else wait

    def _further(self, request: ModelRequest, why: str) -> ModelRequest | Finish:
        """After a cut: ask for the rest of the answer, or for all of it again."""
        self._assembly = Assembly()
        spoken, said = self._spoken, self._spoken.said
        able = self._continues and self._engine.capabilities.continuation
        free = able and not spoken.thought and not self._calls.of(self._turn)
        rest = self._go_on(request, said) if free and said.text else None
        if rest is None:
            if said.text or spoken.thought:
                self._context.emit(TextRetracted(turn=self._turn, reason=why))
            spoken.clear()
            self._first = self._routed = None
            return request
        spoken.before = said.tokens
        if isinstance(rest, ModelRequest):
            self._context.emit(TurnContinued(turn=self._turn, reason=why))
            if self._routed is not None:  # only the model that has begun may go on
                return msgspec.structs.replace(rest, model=self._routed)
        return rest

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
            prefill_ms=finish.timing.prefill_ms,
            decode_ms=finish.timing.decode_ms,
        )
        usage = finish.usage + Usage(output_tokens=self._spoken.before if self._finish else 0)
        self._context.emit(TurnFinished(turn=self._turn, finish_reason=reason, usage=usage, timing=timing))
        return Turn(
            turn=self._turn,
            model="",
            engine=self._engine.name,
            started_seq=0,
            text=self._spoken.text,
            finish_reason=reason,
            usage=usage,
            timing=timing,
        )
