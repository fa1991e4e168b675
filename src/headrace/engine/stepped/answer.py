"""One answer of the model's process, on the server's side: lines in, chunks out."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from headrace.engine.answer.think_tags import ThinkTags
from headrace.engine.port import Chunk, Finish, Text
from headrace.engine.stepped.lines import Ended, Piece, Refused
from headrace.engine.upstream.port import Timeouts
from headrace.errors import ContextOverflow, EngineDied, EngineError, EngineRejected, EngineTimeout, EngineUnavailable
from headrace.messages import Timing, Usage


class Answer:
    """An iterator for whoever asked. `continued` says that it goes on with a text, which has no thinking before it;
    `library` is who answers, by the name that its users know."""

    def __init__(self, *, library: str, timeouts: Timeouts, continued: bool) -> None:
        self._library = library
        self._loop = asyncio.get_running_loop()
        self._timeouts = timeouts
        self._started = self._loop.time()
        self._first: float | None = None
        self._ready: deque[Chunk] = deque()
        self._tags = None if continued else ThinkTags()
        self._over: EngineError | StopAsyncIteration | None = None
        self._wake: asyncio.Future[None] | None = None

    @property
    def over(self) -> bool:
        """Nothing more is to be heard of it."""
        return self._over is not None

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        while not self._ready:
            if self._over is not None:
                raise self._over
            await self._more()
        return self._ready.popleft()

    def hear(self, message: Piece | Ended | Refused) -> None:
        match message:
            case Piece(text=text):
                self._say(text)
            case Ended():
                self._end(message)
            case Refused():
                self._over = self._refusal(message)
        self._awake()

    def broke(self) -> None:
        """The process has died."""
        if self._over is not None:
            return
        if self._first is None:
            self._over = EngineUnavailable("The engine's process ended before it had answered.")
        else:
            self._over = EngineDied("The engine's process ended in the middle of an answer.")
        self._awake()

    def _say(self, text: str) -> None:
        if self._first is None:
            self._first = self._loop.time()
        if self._tags is None:
            self._ready.append(Text(text))
            return
        self._ready.extend(self._tags.feed(text))
        if self._tags.settled:
            self._tags = None

    def _end(self, message: Ended) -> None:
        if self._tags is not None:
            self._ready.extend(self._tags.end())
        first_ms = ((self._loop.time() if self._first is None else self._first) - self._started) * 1000
        timing = Timing(
            queued_ms=max(0.0, first_ms - message.prefill_ms),
            first_token_ms=first_ms,
            total_ms=self._since_start(),
            prefill_ms=message.prefill_ms,
            decode_ms=message.decode_ms,
        )
        usage = Usage(
            input_tokens=message.input_tokens,
            output_tokens=message.output_tokens,
            cached_tokens=message.cached_tokens,
        )
        self._ready.append(Finish(reason=message.reason, usage=usage, timing=timing))
        self._over = StopAsyncIteration()

    def _refusal(self, message: Refused) -> EngineError:
        match message.why:
            case "overflow":
                return ContextOverflow(message.reason, hint="Shorten the conversation.")
            case "rejected":
                return EngineRejected(f"{self._library} refuses the request: {message.reason}")

    def _since_start(self) -> float:
        return (self._loop.time() - self._started) * 1000

    def _awake(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _more(self) -> None:
        """Wait until something has been heard."""
        self._wake = self._loop.create_future()
        begun = self._first is not None
        due = self._loop.time() + self._timeouts.idle if begun else self._started + self._timeouts.first_token
        try:
            async with asyncio.timeout_at(due):
                await self._wake
        except TimeoutError as exc:
            limit = self._timeouts.idle if begun else self._timeouts.first_token
            what = "idle" if begun else "first token"
            raise EngineTimeout(f"The engine's process said nothing for {limit:g} s ({what}).") from exc
