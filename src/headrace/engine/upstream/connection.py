"""One connection to a process of ours, with one request and the response to it."""

import asyncio

import httptools

_HEAD_BYTES = 65536  # of a response's status line and headers
_UNREAD_BYTES = 262144  # more than this, and nothing is taken from the socket until somebody reads


class Connection(asyncio.Protocol):
    """See `port.Response`. It is among `others` while it is open, and closes by itself when the response has ended."""

    def __init__(self, loop: asyncio.AbstractEventLoop, others: "set[Connection]") -> None:
        self.status = 0
        self.reason = ""
        self.headers: dict[str, str] = {}
        self._loop = loop
        self._others = others
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._head_bytes = 0
        self._parts: list[bytes] = []
        self._unread = 0
        self._paused = False
        self._ended = False
        self._broken: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def content(self) -> "Connection":
        return self

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "application/octet-stream").partition(";")[0].strip().lower()

    async def ask(self, request: bytes) -> None:
        """Send, and wait for the head of the response. Raises OSError."""
        if self._transport is not None:
            self._transport.write(request)
        try:
            while not self.status:
                if self._broken is not None:
                    raise self._broken
                await self._wait()
        except BaseException:
            self.close()
            raise

    async def readany(self) -> bytes:
        """See `port.Body`. Raises OSError."""
        while not self._parts:
            if self._ended:
                return b""
            if self._broken is not None:
                raise self._broken
            await self._wait()
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts, self._unread = [], 0
        if self._paused:
            self._paused = False
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()
        return data

    def close(self) -> None:
        self.break_off(ConnectionError("the connection was closed here"))

    def break_off(self, why: Exception) -> None:
        """Whoever reads, or reads later, is told, unless the response has ended."""
        self._broken = self._broken or why
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    async def _wait(self) -> None:
        """Until there is something new. Only one can read."""
        if self._waiter is not None and not self._waiter.done():
            raise RuntimeError("somebody else reads this response")
        self._waiter = self._loop.create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # What asyncio calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._others.add(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            self.break_off(ConnectionError(f"what it says is no HTTP: {exc}"))
            return
        if not self.status:
            self._head_bytes += len(data)
            if self._head_bytes > _HEAD_BYTES:
                self.break_off(ConnectionError("its response has no end of headers"))
        else:
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._others.discard(self)
        self._transport = None
        if exc is None and self.status and self.headers.keys().isdisjoint(("content-length", "transfer-encoding")):
            self._ended = True  # it says how long it is by ending
        self._broken = self._broken or exc or ConnectionResetError("the server closed it")
        self._wake()

    # What the parser calls. Before the response there may be others that only say that it comes (1xx).

    def on_status(self, reason: bytes) -> None:
        if not self._ended:
            self.reason = reason.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.status:
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self.headers.clear()
        elif not self.status:
            self.status = status

    def on_body(self, piece: bytes) -> None:
        if self._ended:
            return
        self._parts.append(piece)
        self._unread += len(piece)
        if self._unread > _UNREAD_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self.status:
            self._ended = True
            if self._transport is not None:
                self._transport.abort()
