"""A TCP proxy that breaks connections on purpose: cut at a byte, cut now, swallow everything, refuse."""

import asyncio
import socket
import struct
from collections import deque
from types import TracebackType


class Link:
    """One proxied connection. `down` counts the bytes that reached the client."""

    def __init__(self, client: asyncio.StreamWriter, cut_at: int | None) -> None:
        self._client = client
        self._cut_at = cut_at
        self.down = 0

    def forward_down(self, data: bytes) -> bool:
        """Pass `data` on to the client, up to the byte where this link is to be cut. False once it is cut."""
        if self._cut_at is not None and self.down + len(data) >= self._cut_at:
            self._client.write(data[: self._cut_at - self.down])
            self.down = self._cut_at
            return False
        self._client.write(data)
        self.down += len(data)
        return True

    def reset(self) -> None:
        """Close with RST: what the client has not read yet is lost. Nothing for a link that is closed already."""
        if self._client.transport.is_closing():
            return
        sock: socket.socket = self._client.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._client.transport.abort()


class Proxy:
    """`async with Proxy(port) as proxy`, then connect to `proxy.port`.

    `cuts`: each new connection takes the first entry and is cut after that many bytes towards the client (None or
    an empty queue: never). `hole`: while true, bytes in both directions vanish and nothing is closed. `refusing`:
    while true, new connections are reset at once. `links` holds every connection so far.
    """

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._upstream = (host, port)
        self.cuts: deque[int | None] = deque()
        self.hole = False
        self.refusing = False
        self.links: list[Link] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def point_to(self, port: int) -> None:
        """Carry new connections to another port, and reset the others."""
        self._upstream = (self._upstream[0], port)
        self.cut()

    def cut(self) -> None:
        """Reset every open connection now."""
        for link in self.links:
            link.reset()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        link = Link(writer, self.cuts.popleft() if self.cuts else None)
        self.links.append(link)
        try:
            if not self.refusing:
                await self._carry(link, reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # a broken or ended link is what this proxy is for
        finally:
            link.reset() if self.refusing else writer.close()
            self._tasks.discard(task)

    async def _carry(self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(*self._upstream)
        try:
            ways = [
                asyncio.ensure_future(self._up(reader, up_writer)),
                asyncio.ensure_future(self._down(link, up_reader, writer)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        finally:
            up_writer.close()

    async def _up(self, reader: asyncio.StreamReader, upstream: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if not self.hole:
                upstream.write(data)
                await upstream.drain()

    async def _down(self, link: Link, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await upstream.read(65536):
            if self.hole:
                continue
            alive = link.forward_down(data)
            await writer.drain()
            if not alive:
                return
