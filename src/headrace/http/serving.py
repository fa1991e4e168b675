"""uvicorn, with a connection that keeps little for a client that does not read."""

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from headrace.http.outlet import App, Send

WRITE_HIGH_WATER = 16 * 1024
"""Bytes a socket may owe its client before we stop writing to it; the default would let 64 kB pile up."""

CORKED_BYTES = 4 * 1024
"""More than this is not held back for anybody."""


MAX_HEAD_BYTES = 64 * 1024
"""Of a request's line and headers; uvicorn would keep whatever a client sends."""

MAX_HEADERS = 100
"""The WebSocket library takes 128 and would leave a connection with more of them waiting for ever."""

REQUEST_PATIENCE_S = 60.0
"""Seconds in which a whole request must have come, so that clients who never finish one cannot hold all sockets."""


HEAD_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: 45\r\nconnection: close\r\n\r\nThe request's line and headers are too large."
)


class _HeadTooLarge(Exception):
    pass


class _Flag:
    """`asyncio.Event` without its deque, which takes 760 bytes of every idle connection; uvicorn makes two of them."""

    __slots__ = ("_set", "_waiters")

    def __init__(self, value: bool) -> None:
        self._set = value
        self._waiters: list[asyncio.Future[None]] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def clear(self) -> None:
        self._set = False

    async def wait(self) -> bool:
        if not self._set:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                self._waiters.remove(waiter)
        return True


class _Corked:
    """A transport that gathers what an answer says in its first tick into one write.

    Headers and the first records are a few microseconds apart, and each write is a system call that the first token
    waits for. After that the cycle writes to the real transport.
    """

    __slots__ = ("_cycle", "_parts", "_size", "_transport")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle: Any = cycle
        self._transport = cycle.transport
        self._parts: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        if not self._parts:
            asyncio.get_running_loop().call_soon(self.uncork)
        self._parts.append(data)
        self._size += len(data)
        if self._size > CORKED_BYTES:
            self.uncork()

    def close(self) -> None:
        self.uncork()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def uncork(self) -> None:
        if self._cycle.transport is self:
            self._cycle.transport = self._transport
        if self._parts and not self._transport.is_closing():
            parts, self._parts = self._parts, []
            self._transport.write(b"".join(parts))


class _Pipeline(list[Any]):
    """Pipelined requests, hardly ever any: a deque would take 760 bytes."""

    def appendleft(self, request: Any) -> None:
        self.insert(0, request)


class Connection(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 connection with less memory: 3 kB less while it streams, bounded when its client stalls.

    A request's head is bounded too, and so is the time that it may take to come.
    """

    # Slots, because a few more entries make the instance's dict 1.5 kB larger: it no longer shares its keys.
    __slots__ = ("_arriving", "_awaited", "_head_bytes", "_in_head")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._awaited: asyncio.TimerHandle | None = None
        self._in_head, self._head_bytes, self._arriving = False, 0, 0
        super().connection_made(transport)
        self._await_request()
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        self.pipeline = _Pipeline()  # type: ignore[assignment]
        self.flow._is_writable_event = _Flag(True)  # type: ignore[assignment]

    def shutdown(self) -> None:
        transport: Any = self.cycle and self.cycle.transport
        if isinstance(transport, _Corked):
            transport.uncork()
        super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        self._request_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._arriving = len(data)
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self._refuse_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        if self._awaited is None:
            self._await_request()

    def on_message_complete(self) -> None:
        self._request_came()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if self._in_head and self._is_head_too_large():
            self._refuse_head()
        elif not self.transport.is_closing():
            super().send_400_response(msg)

    def _refuse_head(self) -> None:
        self.transport.write(HEAD_TOO_LARGE)
        self.transport.close()

    def _is_head_too_large(self) -> bool:
        if self._head_bytes + self._arriving <= MAX_HEAD_BYTES and len(self.headers) <= MAX_HEADERS:
            return False  # not even with all that has come
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        return size > MAX_HEAD_BYTES or len(self.headers) > MAX_HEADERS

    def _await_request(self) -> None:
        self._awaited = self.loop.call_later(REQUEST_PATIENCE_S, self._give_up)

    def _request_came(self) -> None:
        if self._awaited is not None:
            self._awaited.cancel()
            self._awaited = None

    def _give_up(self) -> None:
        self._awaited = None
        self.transport.close()

    def on_headers_complete(self) -> None:
        if self._is_head_too_large():
            raise _HeadTooLarge
        self._in_head = False
        super().on_headers_complete()
        if self.cycle is not None:
            self.cycle.transport = _Corked(self.cycle)  # type: ignore[assignment]
            self.cycle.message_event = _Flag(self.cycle.message_event.is_set())  # type: ignore[assignment]


def chunk_writer(send: Send) -> Callable[[bytes], bool] | None:
    """A quicker way than `send` to write a piece of a streaming answer (see `http.outlet.Outlet`): 0.6 µs and no
    coroutine instead of 2.4. None where something else than uvicorn is underneath."""
    cycle = getattr(send, "__self__", None)
    return partial(_write_chunk, cycle) if isinstance(cycle, RequestResponseCycle) else None


def _write_chunk(cycle: RequestResponseCycle, body: bytes) -> bool:
    if cycle.flow.write_paused or cycle.disconnected or cycle.response_complete or not cycle.chunked_encoding:
        return False
    cycle.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
    return True


class WebSocketConnection(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket that reads no more while its client does not: else pongs for whoever sends pings and reads
    none of them would pile up without bound."""

    def pause_writing(self) -> None:
        super().pause_writing()
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()


class HttpServer(uvicorn.Server):
    """An async context manager around uvicorn's start and shutdown; signals are the caller's business."""

    def __init__(self, app: App, listening: socket.socket, *, max_message: int = 1024 * 1024) -> None:
        """`max_message` bounds a WebSocket message, in bytes; a larger one closes its socket with 1009."""
        self._listening = listening
        config = uvicorn.Config(
            app,
            http=Connection,
            ws=WebSocketConnection,
            ws_max_size=max_message,
            lifespan="off",
            access_log=False,
            log_config=None,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=2,
        )
        super().__init__(config)
        self._ticking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "HttpServer":
        if not self.config.loaded:
            self.config.load()
        self.lifespan = self.config.lifespan_class(self.config)
        await self.startup(sockets=[self._listening])
        self._ticking = asyncio.create_task(self.main_loop(), name="uvicorn")
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.should_exit = True
        if self._ticking is not None:
            await self._ticking
        await self.shutdown(sockets=[self._listening])
