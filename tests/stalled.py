"""A client of one SSE stream that reads as little and as slowly as a test wants, over a socket with a small buffer."""

import asyncio
import socket
from types import TracebackType

RECEIVE_BUFFER = 4096


class StalledReader:
    """`async with StalledReader(port, path)` asks for a stream; nothing is read but by `read`."""

    def __init__(self, port: int, path: str, *, after: int | None = None) -> None:
        self._address = ("127.0.0.1", port)
        cursor = "" if after is None else f"Last-Event-ID: {after}\r\n"
        self._request = f"GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{cursor}\r\n".encode()
        self._socket = socket.socket()
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        self.raw = b""

    async def __aenter__(self) -> "StalledReader":
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self._socket, self._address)
        await loop.sock_sendall(self._socket, self._request)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    async def read(self, size: int = 4096) -> bytes:
        """What is there, at most `size` bytes; nothing once the server has closed. Kept in `raw` too."""
        piece = await asyncio.get_running_loop().sock_recv(self._socket, size)
        self.raw += piece
        return piece

    async def read_all(self) -> bytes:
        """The body of the answer to its end, without its chunks."""
        pieces = [self.raw]
        while piece := await self.read(65536):
            pieces.append(piece)
            self.raw = b""
        return unchunked(b"".join(pieces).partition(b"\r\n\r\n")[2])


def unchunked(raw: bytes) -> bytes:
    """A body in chunked transfer coding, taken apart strictly."""
    pieces: list[bytes] = []
    at = 0
    while True:
        end = raw.index(b"\r\n", at)
        size = int(raw[at:end], 16)
        if size == 0:
            return b"".join(pieces)
        pieces.append(raw[end + 2 : end + 2 + size])
        assert raw[end + 2 + size : end + 4 + size] == b"\r\n"
        at = end + 4 + size
