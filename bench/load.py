"""The load client: a process of its own, one epoll loop over raw sockets, cheaper per event than any server here.

Reads a `Job` as JSON from stdin, prints an `Outcome` as JSON. It looks only as deep into the bytes as the job needs:
it counts blank lines (an event's end) everywhere, and reads the stamps of every `sample`th stream.
"""

import itertools
import re
import resource
import select
import socket
import sys
import time
from statistics import median, quantiles

import msgspec

from bench.model import age_us
from bench.process import cpu_seconds

_MERGED = re.compile(rb'"n":(\d+)')
_TEXT = re.compile(rb'"(?:text|content)":"((?:[0-9A-Za-z_-]{5})+)"')
_BUFFER = 1 << 18


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One of `requests` in turn is sent on each of `streams` connections. The window of `seconds` opens when all have
    had an event, or after `ramp` seconds. CPU of `pids` is read at its two ends. `sample` 0 reads no stamps.
    With `ports` the connections go to each of them in turn."""

    port: int
    requests: tuple[str, ...]
    streams: int
    seconds: float
    ramp: float = 30.0
    settle: float = 0.5
    sample: int = 0
    pids: tuple[int, ...] = ()
    ports: tuple[int, ...] = ()


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Microseconds."""

    n: int
    p50: float
    p99: float
    worst: float


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """`merged` is how many events came in frames that carry several; `client_share` is of one core."""

    events: int
    frames: int
    merged: int
    bytes_received: int
    seconds: float
    server_cpu: float
    client_share: float
    started: int
    receives: int
    latency: Spread | None = None


def spread(values: list[float]) -> Spread | None:
    if len(values) < 2:
        return None
    return Spread(n=len(values), p50=median(values), p99=quantiles(values, n=100)[98], worst=max(values))


def raise_file_limit(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard) if hard > 0 else wanted, hard))


def connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setblocking(False)
    return connection


def tokens_in(buffer: bytearray, size: int) -> list[str]:
    """The five-character tokens of all deltas; a merged delta holds several."""
    texts = [text.decode() for text in _TEXT.findall(buffer, 0, size)]
    return [text[at : at + 5] for text in texts for at in range(0, len(text), 5)]


class Load:
    """N open streams and what came out of them."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._poll = select.epoll()
        self._connections: dict[int, socket.socket] = {}
        self._sampled: set[int] = set()
        self._silent: set[int] = set()
        self._half: set[int] = set()  # streams whose last byte was the first of an event's two line feeds
        self._buffer = bytearray(_BUFFER)
        self._ages: list[float] = []
        self._recording = False
        self.frames = self.merged = self.received = self.receives = 0

    def open(self) -> None:
        ports = self._job.ports or (self._job.port,)
        for index in range(self._job.streams):
            connection = connect(ports[index % len(ports)])
            descriptor = connection.fileno()
            self._connections[descriptor] = connection
            self._silent.add(descriptor)
            if self._job.sample and index % self._job.sample == 0:
                self._sampled.add(descriptor)
            self._poll.register(descriptor, select.EPOLLIN)
        requests = [request.encode() for request in self._job.requests]
        for request, connection in zip(itertools.cycle(requests), list(self._connections.values()), strict=False):
            connection.sendall(request)
            self.turn(0)

    def turn(self, timeout: float) -> None:
        """One round of the loop. Hot: everything per event happens in here."""
        buffer, connections, half = self._buffer, self._connections, self._half
        for descriptor, _ in self._poll.poll(timeout):
            size = connections[descriptor].recv_into(buffer)
            if not size:
                self._lost(descriptor)
                continue
            count = buffer.count(b"\n\n", 0, size)
            if half and descriptor in half:
                half.discard(descriptor)
                count += buffer[0] == 10
            if buffer[size - 1] == 10 and buffer[size - 2] == 125:  # "}\n": cut between the two line feeds
                half.add(descriptor)
            self.received += size
            self.receives += 1
            self.frames += count
            if buffer.find(b'"n":', 0, size) >= 0:
                self.merged += sum(int(n) - 1 for n in _MERGED.findall(buffer, 0, size))
            if self._silent and count:
                self._heard(descriptor, size)
            if self._recording and descriptor in self._sampled:
                now = time.monotonic_ns() // 1000
                self._ages += [age_us(token, now) for token in tokens_in(buffer, size)]

    def _heard(self, descriptor: int, size: int) -> None:
        if descriptor in self._silent and _TEXT.search(self._buffer, 0, size):
            self._silent.discard(descriptor)

    def _lost(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        self._connections.pop(descriptor).close()

    def run(self) -> Outcome:
        self.open()
        ramp_ends = time.monotonic() + self._job.ramp
        while self._silent and time.monotonic() < ramp_ends:
            self.turn(0.1)
        self._turn_for(self._job.settle)
        return self._window()

    def _turn_for(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            self.turn(left)

    def _window(self) -> Outcome:
        self._recording = True
        frames, merged, received, receives = self.frames, self.merged, self.received, self.receives
        server, client, began = cpu_seconds(self._job.pids), time.process_time(), time.monotonic()
        self._turn_for(self._job.seconds)
        seconds = time.monotonic() - began
        return Outcome(
            events=self.frames - frames + self.merged - merged,
            frames=self.frames - frames,
            merged=self.merged - merged,
            bytes_received=self.received - received,
            seconds=seconds,
            server_cpu=cpu_seconds(self._job.pids) - server,
            client_share=(time.process_time() - client) / seconds,
            started=len(self._connections) - len(self._silent & self._connections.keys()),
            receives=self.receives - receives,
            latency=spread(self._ages),
        )


def main() -> None:
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    raise_file_limit(job.streams + 100)
    sys.stdout.buffer.write(msgspec.json.encode(Load(job).run()))


if __name__ == "__main__":
    main()
