"""A connection for each request to a process of ours on this machine.

What a pool does for a server far away is not needed here: opening a connection takes less time than finding out that
an old one is stale. And what it costs shows: where the model has all cores, a token's way through Headrace is taken
from the time in which the next one is computed, and each line of code on it must be fetched from memory again.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import urljoin, urlsplit

from headrace.engine.upstream.connection import Connection
from headrace.engine.upstream.messages import (
    ERROR_BYTES,
    headers_of,
    id_header,
    is_answer,
    json_bytes,
    not_connected,
    not_open,
    refusal,
    unreachable,
    with_path,
)
from headrace.engine.upstream.port import MAX_EVENT_BYTES, Response, Timeouts
from headrace.errors import EngineDied


class LoopbackUpstream:
    """See `port.Upstream`. The server ends its answers as HTTP/1.1 does, by a length or in chunks."""

    max_event_bytes: int | None = MAX_EVENT_BYTES

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeouts: Timeouts | None = None,
    ) -> None:
        self.base_url = with_path(base_url)
        self.timeouts = timeouts or Timeouts()
        parts = urlsplit(self.base_url)
        self._address = (parts.hostname or "", parts.port or 80)
        self._path = parts.path
        self._headers = {"Host": parts.netloc, "Connection": "close", **headers_of(api_key, headers)}
        self._open: set[Connection] | None = None

    async def __aenter__(self) -> "LoopbackUpstream":
        self._open = set()
        return self

    async def __aexit__(self, *exc: object) -> None:
        connections, self._open = self._open, None
        for connection in tuple(connections or ()):
            connection.break_off(ConnectionError("the engine was closed"))

    async def post(self, path: str, body: dict[str, Any], *, request_id: str | None = None) -> Connection:
        connection = await self._asked("POST", self._path + path, json_bytes(body), id_header(request_id))
        if not is_answer(connection.status, connection.content_type):
            raise await self._refusal(connection, path)
        return connection

    async def fetch(self, path: str, body: dict[str, Any]) -> bytes:
        return await _all(await self.post(path, body))

    async def get(self, url: str) -> bytes:
        parts = urlsplit(urljoin(self.base_url, url))
        return await _all(await self._asked("GET", parts._replace(scheme="", netloc="").geturl()))

    def linger(self, response: Response) -> None:
        response.close()

    async def _asked(
        self, method: str, target: str, data: bytes = b"", more: dict[str, str] | None = None
    ) -> Connection:
        """A response whose head has come."""
        if self._open is None:
            raise not_open()
        loop = asyncio.get_running_loop()
        make = partial(Connection, loop, self._open)
        try:
            async with asyncio.timeout(self.timeouts.connect):
                _, connection = await loop.create_connection(make, *self._address)
        except TimeoutError as exc:
            raise not_connected(self.base_url, self.timeouts.connect) from exc
        except OSError as exc:
            raise unreachable(self.base_url, exc) from exc
        headers = {**self._headers, **(more or {}), "Content-Length": str(len(data))}
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "\r\n"]
        try:
            await connection.ask("\r\n".join(lines).encode() + data)
        except OSError as exc:
            raise unreachable(self.base_url, exc) from exc
        return connection

    async def _refusal(self, connection: Connection, path: str) -> Exception:
        return refusal(
            await _all(connection, at_most=ERROR_BYTES),
            url=self.base_url + path,
            status=connection.status,
            content_type=connection.content_type,
            reason=None,
            retry_after=connection.headers.get("retry-after"),
        )


async def _all(connection: Connection, *, at_most: int | None = None) -> bytes:
    """The rest of a response. Raises EngineDied."""
    parts: list[bytes] = []
    size = 0
    try:
        while (at_most is None or size < at_most) and (part := await connection.readany()):
            parts.append(part)
            size += len(part)
    except OSError as exc:
        raise EngineDied(f"The connection to the model server broke: {exc}") from exc
    finally:
        connection.close()
    return b"".join(parts)
