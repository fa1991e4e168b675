"""A model server for tests that sends any bytes, cut anywhere, and knows who is still connected.

    async with FakeUpstream(*answers) as upstream:
        engine = OpenAIEngine(upstream.url, model="m")

Each request takes the next answer; the last one is given again. `choose` answers by what was asked instead. A step of
an answer is bytes (one HTTP chunk, flushed), seconds to wait, an asyncio.Event to wait for, or CUT, which aborts the
connection.
"""

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Any

import msgspec


class Cut(msgspec.Struct, frozen=True):
    """Abort the connection."""


CUT = Cut()
FOR_EVER = 3600.0
Step = bytes | float | asyncio.Event | Cut


class Answer(msgspec.Struct, frozen=True):
    """Status 0 closes the connection without a word, as servers do with one that was idle for long."""

    steps: list[Step]
    status: int = 200
    headers: dict[str, str] = msgspec.field(default_factory=lambda: {"Content-Type": "text/event-stream"})


class Asked(msgspec.Struct, frozen=True):
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


def sse(*events: object) -> bytes:
    """Each event as one `data:` line; a string stands as it is."""
    return b"".join(b"data: " + (e if isinstance(e, str) else json.dumps(e)).encode() + b"\n\n" for e in events)


def delta(finish: str | None = None, **fields: object) -> dict[str, object]:
    """A chat.completion.chunk."""
    return {
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": fields, "finish_reason": finish}],
    }


def byte_by_byte(data: bytes) -> list[Step]:
    return [data[i : i + 1] for i in range(len(data))]


def json_answer(body: object, status: int = 200, **headers: str) -> Answer:
    return Answer([json.dumps(body).encode()], status, {"Content-Type": "application/json", **headers})


def vectors_of(texts: list[str]) -> Answer:
    """Two texts have the same direction only if they are the same; the last one comes first."""
    rows = [
        {"index": index, "embedding": [float(text.encode().count(byte)) for byte in range(256)]}
        for index, text in enumerate(texts)
    ]
    return json_answer({"data": rows[::-1]})


class FakeUpstream:
    """`open_now` are requests in progress, `left` those whose client went before the end. `port` 0 takes any free one;
    one that is given again is where the server stood before it was left."""

    def __init__(
        self,
        *answers: Answer | Iterable[Step] | bytes,
        choose: Callable[[Asked], Answer] | None = None,
        port: int = 0,
    ) -> None:
        self.port = port
        self._choose = choose or self._in_order
        self._answers = [self._answer(answer) for answer in answers]
        self.asked: list[Asked] = []
        self.connections = 0
        self.open_now = 0
        self.left = 0
        self._handlers: set[asyncio.Task[None]] = set()

    @staticmethod
    def _answer(answer: Answer | Iterable[Step] | bytes) -> Answer:
        if isinstance(answer, Answer):
            return answer
        return Answer([answer] if isinstance(answer, bytes) else list(answer))

    def _in_order(self, _asked: Asked) -> Answer:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> "FakeUpstream":
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        for handler in self._handlers:
            handler.cancel()
        if self._handlers:
            await asyncio.wait(self._handlers)
        await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        handler = asyncio.current_task()
        assert handler is not None
        self._handlers.add(handler)
        try:
            while await self._request(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._handlers.discard(handler)
            writer.transport.abort()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.asked.append(Asked(head[0].split()[1], headers, json.loads(body) if body else {}))
        answer = self._choose(self.asked[-1])
        self.open_now += 1
        try:
            return await self._serve(answer, reader, writer)
        finally:
            self.open_now -= 1

    async def _serve(self, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """True if the connection can be used again."""
        sending = asyncio.ensure_future(self._send(answer, writer))
        leaving = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                self.left += 1
                return False
            return sending.result()
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.wait((sending, leaving))

    async def _send(self, answer: Answer, writer: asyncio.StreamWriter) -> bool:
        if not answer.status:
            writer.transport.abort()
            return False
        lines = [f"HTTP/1.1 {answer.status} Whatever", *(f"{k}: {v}" for k, v in answer.headers.items())]
        writer.write("\r\n".join([*lines, "Transfer-Encoding: chunked", "", ""]).encode())
        for step in answer.steps:
            if isinstance(step, Cut):
                writer.transport.abort()
                return False
            if isinstance(step, bytes):
                writer.write(b"%x\r\n%b\r\n" % (len(step), step))
                await writer.drain()
                await asyncio.sleep(0)
            elif isinstance(step, asyncio.Event):
                await step.wait()
            else:
                await asyncio.sleep(step)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True
