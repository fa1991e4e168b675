"""An engine that plays scripts: for tests and benches.

A script is what one answer consists of, step by step: chunks, `Pause`, and faults. An EngineError in it is raised at
that point, `Hang()` never goes on. A script without a Finish gets one that counts its chunks. So "dies after two
tokens" is `[Text("a"), Text("b"), EngineDied("gone")]`.

A continued answer is the script from where the text that was said ends; what stood in the script before is over. A
stop string ends the script. Whatever else a request asks for changes nothing.

It counts what a test wants to assert: `requests`, `opened`, `open_now`.
"""

import asyncio
import random
import types
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from itertools import chain, repeat

import msgspec

from headrace.engine.admission import require_supported
from headrace.engine.answer.text import AnswerText
from headrace.engine.port import PARAMETERS, Capabilities, Chunk, Finish, FinishReason, ModelRequest, Text, ToolCallPart
from headrace.errors import EngineError, EngineRejected
from headrace.messages import Timing, Usage


class Pause(msgspec.Struct, frozen=True):
    """Nothing comes for so many seconds, besides the engine's own rate."""

    seconds: float


class Hang(msgspec.Struct, frozen=True):
    """Nothing comes any more; only leaving the stream ends it."""


Step = Chunk | Pause | Hang | EngineError
Script = str | Iterable[Step]
"""A string is played word by word."""


class Deltas(msgspec.Struct, frozen=True):
    """A long answer that costs no memory: the same text, so many times."""

    count: int
    text: str = "token "

    def __iter__(self) -> Iterator[Text]:
        return repeat(Text(self.text), self.count)


_ALL = Capabilities(
    tools=True,
    sampling=PARAMETERS,
    logprobs=True,
    grammar=True,
    regex=True,
    json_schema=True,
    thinking=True,
    raw_prompt=True,
    continuation=True,
)
"""It takes every request: what it says is what its script says."""

_LONGEST_BURST = 32  # chunks that may come without a tick of the loop when the schedule is behind


class ScriptedEngine:
    """Plays `script` for every request, or one of `scripts` for each, in order; more requests than scripts are an
    EngineRejected. `script` may be a function of the request.

    `rate` is in chunks per second; 0 is one chunk per tick of the loop. `first_token` is the delay before the first
    chunk in seconds. `jitter` (0 to 1) varies each gap by that part, by `seed`.
    """

    name = "scripted"

    def __init__(
        self,
        script: Script | Callable[[ModelRequest], Script] | None = None,
        *,
        scripts: Iterable[Script] | None = None,
        rate: float = 0.0,
        first_token: float = 0.0,
        jitter: float = 0.0,
        seed: int = 0,
        model: str = "scripted",
        capabilities: Capabilities = _ALL,
    ) -> None:
        if (script is None) == (scripts is None):
            raise ValueError("give `script` or `scripts`, one of them")
        self.model = model
        self.capabilities = capabilities
        self.requests: list[ModelRequest] = []
        self.opened = 0
        self.open_now = 0
        self._script = script
        self._scripts = iter(scripts or ())
        self._gap = 1.0 / rate if rate else 0.0
        self._first_token = first_token
        self._jitter = jitter
        self._random = random.Random(seed)

    async def __aenter__(self) -> "ScriptedEngine":
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        return _Stream(self, request)

    def _script_for(self, request: ModelRequest) -> Iterable[Step]:
        script = self._script
        if script is None:
            script = next(self._scripts, None)
        if script is None:
            number = len(self.requests)
            raise EngineRejected(f"No script is left for request {number}.", hint="Give one script for each request.")
        chosen = script(request) if callable(script) else script
        steps = words(chosen) if isinstance(chosen, str) else chosen
        return steps if request.continued is None else left_of(steps, request.continued)

    async def _play(self, request: ModelRequest) -> AsyncGenerator[Chunk, None]:
        """One timer per chunk at most, and none while the schedule is behind: 1 to 3 µs per chunk of its own."""
        loop = asyncio.get_running_loop()
        started = due = loop.time()
        due += self._first_token
        gap, jitter, uniform = self._gap, self._jitter, self._random.uniform
        tally = _Tally(input_tokens=_words_in(request))
        burst = 0
        timer: asyncio.TimerHandle | None = None
        try:
            for step in self._script_for(request):
                if isinstance(step, _SILENT):
                    await asyncio.sleep(step.seconds if isinstance(step, Pause) else _FOR_EVER)
                    due = loop.time()
                    continue
                if isinstance(step, EngineError):
                    raise step.with_traceback(None)
                if due > loop.time():
                    wake = loop.create_future()
                    timer = loop.call_at(due, _wake, wake)
                    await wake
                    burst = 0
                elif burst >= _LONGEST_BURST or not gap:
                    await _tick()
                    burst = 0
                burst += 1
                due += gap * (1.0 + uniform(-jitter, jitter)) if jitter else gap
                if isinstance(step, Finish):
                    yield step
                    return
                if not tally.output_tokens:
                    tally.first_token_ms = (loop.time() - started) * 1000
                tally.output_tokens += 1
                tally.called = tally.called or type(step) is ToolCallPart
                yield step
            yield tally.finish((loop.time() - started) * 1000)
        finally:
            if timer is not None:
                timer.cancel()


_SILENT = (Pause, Hang)
_FOR_EVER = 10.0 * 365 * 86400


class _Tally:
    """What the Finish of a script without one says."""

    __slots__ = ("called", "first_token_ms", "input_tokens", "output_tokens")

    def __init__(self, *, input_tokens: int) -> None:
        self.input_tokens = input_tokens
        self.output_tokens = 0
        self.called = False
        self.first_token_ms: float | None = None

    def finish(self, total_ms: float) -> Finish:
        reason: FinishReason = "tool_calls" if self.called else "stop"
        usage = Usage(input_tokens=self.input_tokens, output_tokens=self.output_tokens)
        return Finish(reason=reason, usage=usage, timing=Timing(first_token_ms=self.first_token_ms, total_ms=total_ms))


class _Stream:
    """The context of one answer."""

    def __init__(self, engine: ScriptedEngine, request: ModelRequest) -> None:
        self._engine = engine
        self._request = request
        self._chunks: AsyncGenerator[Chunk, None] | None = None

    async def __aenter__(self) -> AsyncIterator[Chunk]:
        engine = self._engine
        engine.requests.append(self._request)
        require_supported(self._request, engine.capabilities, engine=engine.name)
        engine.opened += 1
        engine.open_now += 1
        self._chunks = engine._play(self._request)
        return _until_stop(self._chunks, self._request.stop) if self._request.stop else self._chunks

    async def __aexit__(self, *exc: object) -> None:
        self._engine.open_now -= 1
        if self._chunks is not None:
            await self._chunks.aclose()


async def _until_stop(chunks: AsyncIterator[Chunk], stops: tuple[str, ...]) -> AsyncGenerator[Chunk, None]:
    said, tally = AnswerText(start=None, stops=stops), _Tally(input_tokens=0)
    async for chunk in chunks:
        out: list[Chunk] = []
        if isinstance(chunk, Text):
            said.text(chunk.text, out)
        else:
            said.held(out)
            out.append(chunk)
        for shown in out:
            yield shown
        tally.output_tokens += len(out)
        if said.stopped:
            yield tally.finish(0.0)
            return


def words(text: str) -> list[Step]:
    """A text as one chunk per word; joined they are the text."""
    return [Text(word) for word in text.replace(" ", " \0").split("\0") if word]


def left_of(steps: Iterable[Step], said: str) -> Iterator[Step]:
    """What follows after the text `said`. Raises EngineRejected if the script says something else."""
    left, at = iter(steps), 0
    while at < len(said):
        step = next(left, None)
        if isinstance(step, Text) and said.startswith(step.text, at):
            at += len(step.text)
        elif isinstance(step, Text) and step.text.startswith(said[at:]):
            return chain([Text(step.text[len(said) - at :])], left)
        elif step is None or isinstance(step, Text | ToolCallPart | Finish):
            raise EngineRejected("The script does not begin with what was said.", hint=f"That was {said!r}.")
    return left


def _words_in(request: ModelRequest) -> int:
    text = [request.prompt or "", *(message.content for message in request.messages), request.continued or ""]
    return sum(len(part.split()) for part in text)


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)


@types.coroutine
def _tick() -> Generator[None, None, None]:
    yield
