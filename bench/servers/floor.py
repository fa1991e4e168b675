"""The floor: a bare asyncio protocol on uvloop that writes each event straight to its transport. No framework, no log.

With `--discard` the events are made and thrown away: what the fake model itself costs. One frame in fifty is written
then, and says so in `n`.
"""

import asyncio
import itertools
from typing import cast

import msgspec
import uvloop

from bench.model import Plan, generate, parse_plan
from bench.servers.arguments import server_arguments
from bench.servers.frames import encode_delta

_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
    b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)
_DISCARDED = 50


class FloorProtocol(asyncio.Protocol):
    def __init__(self, *, discard: bool) -> None:
        self._discard = discard
        self._received = b""
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, separator, body = self._received.partition(b"\r\n\r\n")
        if separator and len(body) >= content_length(head):
            self._received = b""
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"GET"):
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
            return
        plan = parse_plan(msgspec.json.decode(body)["input"])
        self._transport.write(_HEAD)
        self._task = asyncio.get_running_loop().create_task(self._discarded(plan) if self._discard else self._run(plan))

    async def _run(self, plan: Plan) -> None:
        write = self._transport.write
        seq = itertools.count(1)
        async for token in generate(plan, str):
            frame = encode_delta(next(seq), token)
            write(b"%x\r\n%b\r\n" % (len(frame), frame))
        write(b"0\r\n\r\n")

    async def _discarded(self, plan: Plan) -> None:
        seq = 0
        async for token in generate(plan, str):
            seq += 1
            if seq % _DISCARDED == 0:
                frame = b'id: %d\nevent: text.delta\ndata: {"text":"%b","n":%d}\n\n' % (seq, token.encode(), _DISCARDED)
                self._transport.write(b"%x\r\n%b\r\n" % (len(frame), frame))
        self._transport.write(b"0\r\n\r\n")


def content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


async def serve(port: int, *, discard: bool) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: FloorProtocol(discard=discard), "127.0.0.1", port, backlog=4096)
    async with server:
        await server.serve_forever()


def main() -> None:
    arguments = server_arguments()
    uvloop.run(serve(arguments.port, discard=arguments.discard))


if __name__ == "__main__":
    main()
