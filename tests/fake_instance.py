"""An instance that does with every request what the test says: answer, cut, or be silent. It keeps what it was sent."""

import asyncio
from types import TracebackType

import msgspec

SILENCE = b""
"""As `answer`: read the request and say nothing."""


def response(status: int, body: str = "{}") -> bytes:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return f"{head}connection: close\r\n\r\n{body}".encode()


class Asked(msgspec.Struct, frozen=True):
    """`line` is `POST /v1/runs HTTP/1.1`; names of `headers` are in lower case."""

    line: str
    headers: dict[str, str]
    body: bytes


class FakeInstance:
    """`answer` None cuts the connection once a whole request has come."""

    def __init__(self, answer: bytes | None) -> None:
        self.answer = answer
        self.asked: list[Asked] = []
        self._open: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> "FakeInstance":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for writer in self._open:
            writer.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            self.asked.append(await _read(reader))
            if self.answer == SILENCE:
                await reader.read()
            elif self.answer is not None:
                writer.write(self.answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # whoever only looks whether somebody listens
        finally:
            self._open.discard(writer)
            writer.close()


async def _read(reader: asyncio.StreamReader) -> Asked:
    line, *rest = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (header.partition(": ") for header in rest)}
    return Asked(line, headers, await reader.readexactly(int(headers.get("content-length", 0))))
