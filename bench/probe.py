"""A single client with a stopwatch, over blocking sockets: first token, resume, the bytes of an event."""

import re
import socket
import time
from collections.abc import Iterator

import msgspec

_DELTA = re.compile(rb'"(?:text|content)":"((?:[0-9A-Za-z_-]{5})+)"')
_LAST_CHUNK = b"0\r\n\r\n"
_RUN_ID = re.compile(rb'(?:x-run-id: |"run_id":")([0-9a-fA-F-]{16,})', re.IGNORECASE)
_FRAME = re.compile(rb"(?:id|event|data): .*?\n\n", re.DOTALL)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A streamed answer. Seconds count from just before the request was sent; `first` is the first event's."""

    raw: bytes
    first: float
    all: float

    @property
    def run_id(self) -> str:
        return find_run_id(self.raw)

    @property
    def body(self) -> bytes:
        return b"".join(chunks(self.raw))

    @property
    def text(self) -> bytes:
        return b"".join(_DELTA.findall(self.body))


def ask(port: int, request: str, *, until: bytes, event: bytes = b"data: {", timeout: float = 60.0) -> Answer:
    """Send, and read until `until` has come or the server closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        parts: list[bytes] = []
        tail, first = b"", 0.0
        began = time.perf_counter()
        connection.sendall(request.encode())
        while data := connection.recv(1 << 18):
            parts.append(data)
            tail = tail[-64:] + data
            if not first and event in tail:
                first = time.perf_counter() - began
            if until in tail:
                break
        return Answer(raw=b"".join(parts), first=first, all=time.perf_counter() - began)


def first_token(port: int, request: str) -> float:
    """Seconds from sending a request to its first token, on a connection that is already open.

    The rest of the stream is read too, so that what a server does after a run is no part of the next one's time.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        received = b""
        began = time.perf_counter()
        connection.sendall(request.encode())
        while not _DELTA.search(received):
            data = connection.recv(65536)
            if not data:
                raise ConnectionError(f"the stream ended before its first token: {received[:300]!r}")
            received += data
        first = time.perf_counter() - began
        while data and not data.endswith(_LAST_CHUNK):
            data = connection.recv(65536)
        return first


def chunks(raw: bytes) -> Iterator[bytes]:
    """The chunks of a chunked HTTP/1.1 answer, a last torn one left out."""
    at = raw.index(b"\r\n\r\n") + 4
    while (end := raw.find(b"\r\n", at)) > 0:
        size = int(raw[at:end], 16)
        if size == 0 or end + 2 + size > len(raw):
            return
        yield raw[end + 2 : end + 2 + size]
        at = end + size + 4


def delta_sizes(raw: bytes) -> tuple[float, float]:
    """Bytes of an event that carries one five-character token: its frame, and with HTTP's chunk framing."""
    frames: list[int] = []
    wired: list[int] = []
    for chunk in chunks(raw):
        found = [frame for frame in _FRAME.findall(chunk) if _is_single(frame)]
        if len(found) == 1 and len(found[0]) == len(chunk):
            frames.append(len(chunk))
            wired.append(len(chunk) + len(b"%x" % len(chunk)) + 4)
    if not frames:
        raise ValueError("no chunk with exactly one token in it")
    return sum(frames) / len(frames), sum(wired) / len(wired)


def _is_single(frame: bytes) -> bool:
    found = _DELTA.search(frame)
    return found is not None and len(found[1]) == 5


class Held(msgspec.Struct, frozen=True):
    """A connection that has got its headers, and perhaps a little more, and is not read after that."""

    connection: socket.socket
    head: bytes

    @property
    def run_id(self) -> str:
        return find_run_id(self.head)


def find_run_id(raw: bytes) -> str:
    found = _RUN_ID.search(raw)
    if found is None:
        raise ValueError(f"no run id in {raw[:300]!r}")
    return found[1].decode()


def hold_open(port: int, requests: list[str], *, receive_buffer: int | None = None) -> list[Held]:
    """One connection per request. They are opened one after the other and answered at the same time."""
    opened: list[socket.socket] = []
    for request in requests:
        connection = socket.socket()
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(30)
        connection.connect(("127.0.0.1", port))
        connection.sendall(request.encode())
        opened.append(connection)
    return [Held(connection, _read_head(connection)) for connection in opened]


def _read_head(connection: socket.socket) -> bytes:
    received = b""
    while b"\r\n\r\n" not in received:
        data = connection.recv(1024)
        if not data:
            raise ConnectionError("a connection was closed before its headers")
        received += data
    return received
