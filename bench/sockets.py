"""Several runs on one WebSocket: do they share writes? A raw client counts reads, messages and records."""

import base64
import os
import re
import socket
import time
from collections.abc import Iterator

import msgspec

from bench.contestants import Contestant, serving
from bench.measures import ENDLESS, Effort, Numbers, apply_load
from bench.model import Plan
from bench.process import children, client_core, cpu_seconds, on_core

_RUNS = 20
_RATE = 200
_MERGED = re.compile(rb'"n":(\d+)')
_RECORD = b'"type":"record"'


class Counts(msgspec.Struct):
    """`bytes_received` includes the frames' headers."""

    receives: int = 0
    messages: int = 0
    records: int = 0
    bytes_received: int = 0


def shared_socket(contestant: Contestant, effort: Effort) -> Numbers:
    """20 runs at 200/s on one WebSocket, and the same runs as 20 event streams."""
    plan = Plan(tokens=ENDLESS, rate=_RATE, first=0.5)
    with serving(contestant) as server, on_core(client_core()), _open(server.port) as connection:
        for index in range(_RUNS):
            run = {"agent": "bench", "input": str(plan)}
            connection.sendall(masked(msgspec.json.encode({"type": "start", "ref": index, "run": run})))
        _, rest = _count(connection, 2.0)
        pids = children(server.pid)
        cpu = cpu_seconds(pids)
        counts, _ = _count(connection, max(3.0, effort.seconds), rest)
        cpu = cpu_seconds(pids) - cpu
    with serving(contestant) as server:
        streams = apply_load(server, plan, streams=_RUNS, seconds=max(3.0, effort.seconds))
    return {
        "records_per_receive": counts.records / counts.receives,
        "records_per_message": counts.records / counts.messages,
        "bytes_per_record": counts.bytes_received / counts.records,
        "us_per_record": cpu / counts.records * 1e6,
        "us_per_event_as_streams": streams.server_cpu / streams.events * 1e6,
    }


def _open(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    key = base64.b64encode(os.urandom(16)).decode()
    connection.sendall(
        f"GET /ws HTTP/1.1\r\nHost: bench\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: headrace.v1.json\r\n\r\n".encode()
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        if not byte:
            raise ConnectionError(f"no WebSocket: {head[:200]!r}")
        head += byte
    if not head.startswith(b"HTTP/1.1 101"):
        raise ConnectionError(f"no WebSocket: {head[:200]!r}")
    return connection


def masked(payload: bytes) -> bytes:
    """A client's text frame of up to 64 kB; the mask is zero, so the payload stays as it is."""
    assert len(payload) < 1 << 16
    size = bytes([0x80 | len(payload)]) if len(payload) < 126 else b"\xfe" + len(payload).to_bytes(2, "big")
    return b"\x81" + size + bytes(4) + payload


def _count(connection: socket.socket, seconds: float, rest: bytes = b"") -> tuple[Counts, bytes]:
    """Everything that comes in so many seconds, and the beginning of a frame that was cut by the end."""
    counts = Counts()
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        data = connection.recv(1 << 18)
        if not data:
            raise ConnectionError("the server closed the WebSocket")
        counts.receives += 1
        counts.bytes_received += len(data)
        rest += data
        used = 0
        for payload, end in payloads(rest):
            used = end
            counts.messages += 1
            counts.records += payload.count(_RECORD) + sum(int(n) - 1 for n in _MERGED.findall(payload))
        rest = rest[used:]
    return counts, rest


def payloads(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Each whole server frame's payload and where it ends."""
    at = 0
    while len(data) >= at + 2:
        size, start = data[at + 1] & 0x7F, at + 2
        if size == 126:
            size, start = int.from_bytes(data[at + 2 : at + 4], "big"), at + 4
        elif size == 127:
            size, start = int.from_bytes(data[at + 2 : at + 10], "big"), at + 10
        if len(data) < start + size or len(data) < start:
            return
        at = start + size
        yield data[start:at], at
