"""A client written with nothing but aiohttp: what an EventSource does, and a page that opens it again after an error.

It knows nothing of Headrace's records: it keeps `id`, `event` and `data`, repeats the last id when it comes back, and
drops nothing. What it shows twice, or never, is the server's doing.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import NamedTuple

import aiohttp

LATER = frozenset({408, 425, 429, 502, 503, 504})
"""Statuses after which a page would open its EventSource again."""
_SILENT_S = 30.0


class Refused(RuntimeError):
    """The server said something that no coming back can mend."""


class ServerSent(NamedTuple):
    """One block of a stream. `data` is everything after `data: `, of one line, as Headrace writes it."""

    id: str
    event: str
    data: bytes
    retry_s: float | None = None


class EventSource:
    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = url
        self._last_id = ""
        self._retry_s = 3.0
        self._over = False

    async def events(self) -> AsyncIterator[ServerSent]:
        """Until the server answers 204, or the reader leaves. Raises Refused."""
        while not self._over:
            try:
                async for event in self._one_connection():
                    yield event
            except (aiohttp.ClientError, OSError, TimeoutError):
                pass  # an EventSource says nothing more of it than an error event
            if not self._over:
                await asyncio.sleep(self._retry_s)

    async def _one_connection(self) -> AsyncIterator[ServerSent]:
        headers = {"Accept": "text/event-stream", "Sec-Fetch-Mode": "cors"}  # so that nginx takes it for a browser
        headers |= {"Last-Event-ID": self._last_id} if self._last_id else {}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_SILENT_S, sock_read=_SILENT_S)
        async with self._http.get(self._url, headers=headers, timeout=timeout) as answer:
            if answer.status == 204:
                self._over = True
            elif answer.status == 200:
                async for event in self._read(answer.content):
                    yield event
            elif answer.status not in LATER:
                raise Refused(f"{answer.status} after id {self._last_id!r}: {(await answer.text())[:300]}")

    async def _read(self, content: aiohttp.StreamReader) -> AsyncIterator[ServerSent]:
        async for event in read(content):
            self._retry_s = self._retry_s if event.retry_s is None else event.retry_s
            self._last_id = event.id or self._last_id
            if event.data:
                yield event


async def read(content: aiohttp.StreamReader) -> AsyncIterator[ServerSent]:
    """The whole blocks of a stream; one that a cut left unfinished is dropped, as the standard says."""
    rest = b""
    async for piece in content.iter_any():
        *blocks, rest = (rest + piece).split(b"\n\n")
        for block in blocks:
            fields = dict(_fields(block))
            retry_s = int(fields[b"retry"]) / 1000 if b"retry" in fields else None
            kind = fields.get(b"event", b"message").decode()
            yield ServerSent(fields.get(b"id", b"").decode(), kind, fields.get(b"data", b""), retry_s)


def _fields(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    for line in block.split(b"\n"):
        name, _, value = line.partition(b": ")
        if name:  # a comment has none
            yield name, value


async def start(http: aiohttp.ClientSession, url: str, body: bytes, key: str) -> Mapping[str, object]:
    """`POST` until it is answered, with the same Idempotency-Key; what the server says. Raises Refused."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": key}
    while True:
        try:
            timeout = aiohttp.ClientTimeout(total=_SILENT_S)
            async with http.post(url, data=body, headers=headers, timeout=timeout) as answer:
                if answer.status < 300:
                    said: Mapping[str, object] = json.loads(await answer.read())
                    return said
                if answer.status not in LATER:
                    raise Refused(f"{answer.status}: {(await answer.text())[:300]}")
        except (aiohttp.ClientError, OSError, TimeoutError):
            pass  # whether it began is not known: the key makes asking again safe
        await asyncio.sleep(0.5)
