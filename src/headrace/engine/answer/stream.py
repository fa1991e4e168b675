"""One answer of a model server that streams events: sends the request, hands out its chunks, watches the time.

What the events mean is an `AnswerReader`'s to say.

Nothing is sent before the first chunk is asked for. Closing the connection is what stops the generation, so leaving
closes it at once, wherever the answer is.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Literal, Protocol

from headrace.engine.port import Chunk
from headrace.engine.upstream.failures import broken
from headrace.engine.upstream.port import Response, Upstream
from headrace.errors import EngineDied, EngineError, EngineProtocol, EngineTimeout, PayloadTooLarge
from headrace.messages import Timing
from headrace.wire.sse import SSEDecoder

_GRACE = 2.0  # seconds that usage and [DONE] may lag behind the finish reason
_Wait = Literal["first token", "idle"]


class AnswerReader(Protocol):
    """Events in, chunks out. `done`: nothing more comes that matters. `ended`: the answer is complete, only usage may
    follow. `stopped`: a stop string was found here, and the server does not know. `prompt_ms` and `decode_ms` are what
    the server says reading the prompt and saying the answer took, None where it does not."""

    done: bool
    prompt_ms: float | None
    decode_ms: float | None

    @property
    def ended(self) -> bool: ...

    @property
    def stopped(self) -> bool: ...

    def feed(self, data: str, *, event: str = "message") -> list[Chunk]:
        """Raises EngineProtocol for what cannot be read, and the error that an error event means."""
        ...

    def finish(self, timing: Timing) -> list[Chunk]:
        """The last chunks. Raises EngineDied for a stream that broke off."""
        ...


class AnswerStream:
    """The context and the iterator in one. Leave it to stop the generation."""

    def __init__(
        self,
        upstream: Upstream,
        path: str,
        body: dict[str, Any],
        reader: AnswerReader,
        *,
        request_id: str | None = None,
    ) -> None:
        self._upstream = upstream
        self._path = path
        self._body = body
        self._request_id = request_id
        self._timeouts = upstream.timeouts
        self._events = SSEDecoder(max_event_bytes=upstream.max_event_bytes, errors="surrogateescape")
        self._reader = reader
        self._ready: deque[Chunk] = deque()
        self._response: Response | None = None
        self._document: list[bytes] | None = None  # the parts of an answer that is one JSON document, not a stream
        self._over = False
        self._failure: EngineError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._late: _Wait | None = None
        self._first: float | None = None

    async def __aenter__(self) -> "AnswerStream":
        self._loop = asyncio.get_running_loop()
        self._started = self._heard = self._loop.time()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._close()

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        while not self._ready:
            if self._failure is not None:
                raise self._failure
            if self._over:
                raise StopAsyncIteration
            try:
                await self._more()
            except EngineError as failure:
                self._failure = failure  # after what came before it
                self._close()
            except BaseException:
                self._close()
                raise
        return self._ready.popleft()

    async def begin(self) -> None:
        """Send the request, and wait until the server has accepted it. The first chunk does the same."""
        if self._response is None:
            self._response = await self._open()

    async def _more(self) -> None:
        """Wait for bytes and make chunks of them."""
        if self._response is None:
            self._response = await self._open()
        try:
            data = await self._response.content.readany()
        except Exception as exc:
            self._broken(exc)
            return
        self._heard = self._loop.time()
        if data:
            self._take(data)
        elif self._late is None:
            self._end_of_body()
        else:
            self._broken(None)

    async def _open(self) -> Response:
        due = self._started + self._timeouts.first_token
        try:
            async with asyncio.timeout_at(due):
                response = await self._upstream.post(self._path, self._body, request_id=self._request_id)
        except TimeoutError as exc:
            raise self._timeout("first token") from exc
        if response.content_type == "application/json":
            self._document = []
        self._watch()
        return response

    def _take(self, data: bytes) -> None:
        if self._document is not None:
            self._document.append(data)
            return
        try:
            events = self._events.feed(data)
        except PayloadTooLarge as exc:
            raise EngineProtocol(exc.message, hint=exc.hint) from exc
        ready, reader = self._ready, self._reader
        had_ended = reader.ended
        for event in events:
            ready.extend(reader.feed(event.data, event=event.event))
        if reader.done:
            self._finish()
        elif (self._first is None and ready) or reader.ended > had_ended:
            self._note_first()
            self._watch()  # for something else from now on

    def _end_of_body(self) -> None:
        try:
            if self._document is not None:
                self._ready.extend(self._reader.feed(b"".join(self._document).decode("utf-8", "replace")))
            for event in self._events.flush():
                self._ready.extend(self._reader.feed(event.data, event=event.event))
        except EngineProtocol as exc:
            if not self._reader.ended:
                raise EngineDied("The model server's answer is cut off.") from exc
        self._finish()

    def _note_first(self) -> None:
        if self._first is None and self._ready:
            self._first = self._heard

    def _finish(self) -> None:
        self._note_first()
        self._ready.extend(self._reader.finish(self._timing()))
        if not self._reader.stopped:
            response, self._response = self._response, None
            if response is not None:
                self._upstream.linger(response)
        self._close()

    def _timing(self) -> Timing:
        first = None if self._first is None else (self._first - self._started) * 1000
        prompt, decode = self._reader.prompt_ms, self._reader.decode_ms
        if decode is None and self._first is not None:
            decode = (self._heard - self._first) * 1000
        return Timing(
            # What came before the first token and was not the reading of the prompt was waiting.
            queued_ms=0.0 if first is None or prompt is None else max(0.0, first - prompt),
            first_token_ms=first,
            total_ms=(self._loop.time() - self._started) * 1000,
            prefill_ms=prompt,
            decode_ms=None if decode is None else round(decode, 3),
        )

    def _broken(self, exc: Exception | None) -> None:
        """The connection is gone. After the finish reason that is only bad manners."""
        if self._reader.ended:
            self._finish()
        elif self._late is not None:
            raise self._timeout(self._late) from exc
        else:
            raise broken(exc) from exc

    def _timeout(self, wait: _Wait) -> EngineError:
        limit = self._timeouts.first_token if wait == "first token" else self._timeouts.idle
        hint = f"Raise the engine's timeout for {wait}, or lighten its load."
        return EngineTimeout(f"The model server sent nothing within {limit:g} s ({wait}).", hint=hint)

    # One timer watches the stream and is set when what it waits for changes or when it fires too early because bytes
    # came: a timeout around each read would cost 3 µs.

    def _watch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._due()[1], self._look)

    def _look(self) -> None:
        wait, due = self._due()
        if due > self._loop.time():
            self._watch()
            return
        self._late = wait
        if self._response is not None:
            self._response.close()

    def _due(self) -> tuple[_Wait, float]:
        if self._reader.ended:
            return "idle", self._heard + min(_GRACE, self._timeouts.idle)
        if self._first is None:
            return "first token", self._started + self._timeouts.first_token
        return "idle", self._heard + self._timeouts.idle

    def _close(self) -> None:
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._response is not None:
            self._response.close()
