"""A TCP proxy in front of everything that cuts its clients' connections, in mid-frame as well as between frames."""

import asyncio
import random
import socket
import struct
from types import TracebackType

_FAR = 4000
"""Bytes that may still go through before a cut: some hundred records' worth."""


class _Pipe(asyncio.Protocol):
    """One half of a connection; what it reads goes to `other`."""

    def __init__(self, link: "Link") -> None:
        self.link = link
        self.transport: asyncio.Transport | None = None
        self.other: _Pipe | None = None
        self._waiting: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        for data in self._waiting:
            transport.write(data)
        self._waiting.clear()

    def data_received(self, data: bytes) -> None:
        self.link.passed(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.link.close()

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def write(self, data: bytes) -> None:
        if self.transport is None:
            self._waiting.append(data)
        else:
            self.transport.write(data)


class Link:
    """A client's connection and its continuation to the system."""

    def __init__(self, cutter: "Cutter") -> None:
        self.client = _Pipe(self)
        self.system = _Pipe(self)
        self.client.other, self.system.other = self.system, self.client
        self.open = True
        self._cutter = cutter
        self._left: int | None = None
        self._rudely = False

    @property
    def armed(self) -> bool:
        return self._left is not None

    def arm(self, left: int, *, rudely: bool) -> None:
        """Cut after so many more bytes to the client; `rudely` with a reset, which also takes what it has not read."""
        self._left, self._rudely = left, rudely
        if not left:
            self._cut()

    def passed(self, pipe: _Pipe, data: bytes) -> None:
        if pipe is self.client:
            self.system.write(data)
            return
        if self._left is None or len(data) < self._left:
            self.client.write(data)
            self._left = None if self._left is None else self._left - len(data)
            return
        self.client.write(data[: self._left])
        self._cut()

    def close(self) -> None:
        self.open = False
        self._cutter.links.discard(self)
        for pipe in (self.client, self.system):
            if pipe.transport is not None:
                pipe.transport.close()

    def _cut(self) -> None:
        self._left = None
        if not self.open:
            return
        self._cutter.cuts += 1
        if self._rudely and self.client.transport is not None:
            sock: socket.socket = self.client.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.client.transport.abort()
        self.close()


class Cutter:
    """`async with Cutter(port) as cutter`, then connect to `cutter.url`. `cuts` counts the connections it has cut."""

    def __init__(self, port: int) -> None:
        self.links: set[Link] = set()
        self.cuts = 0
        self._port = port
        self._connecting: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Cutter":
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for link in [*self.links]:
            link.close()
        for task in self._connecting:
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut_one(self, chance: random.Random) -> bool:
        """Cut some open connection, now or a few bytes further. False when there is none."""
        links = sorted((link for link in self.links if not link.armed), key=id)
        if not links:
            return False
        chance.choice(links).arm(chance.choice((0, chance.randrange(_FAR))), rudely=chance.random() < 0.5)
        return True

    def _accept(self) -> asyncio.Protocol:
        link = Link(self)
        self.links.add(link)
        task = asyncio.get_running_loop().create_task(self._connect(link))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        return link.client

    async def _connect(self, link: Link) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: link.system, "127.0.0.1", self._port)
        except OSError:
            link.close()
        if not link.open and link.system.transport is not None:
            link.system.transport.close()
