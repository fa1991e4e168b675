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
from headrace.engine.upstream.failures import (
    ERROR_BYTES,
    broken,
    is_answer,
    not_connected,
    not_open,
    refusal,
    unreachable,
)
from headrace.engine.upstream.port import MAX_EVENT_BYTES, Response, Timeouts
from headrace.engine.upstream.request import headers_of, id_header, json_bytes, with_path
from headrace.errors import ConfigError, EngineError


class LoopbackUpstream:
    """See `port.Upstream`. Plain HTTP/1.1; `headers` are sent with every request."""

    max_event_bytes: int | None = MAX_EVENT_BYTES

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeouts: Timeouts | None = None,
    ) -> None:
        """Raises ConfigError."""
        self.base_url = with_path(base_url)
        self.timeouts = timeouts or Timeouts()
        parts = urlsplit(self.base_url)
        if parts.scheme != "http":
            raise ConfigError("A process on this machine is spoken to by http://.", hint="Leave `loopback` out.")
        self._address = (parts.hostname or "", parts.port or 80)
        self._path = parts.path
        self._headers = {
            "Host": "{}:{}".format(*self._address),
            "Connection": "close",
            **headers_of(api_key, headers),
        }
        if not all(word.isascii() and word.isprintable() for header in self._headers.items() for word in header):
            raise ConfigError("A header or the API key cannot be sent.", hint="Printable ASCII can.")
        self._open: set[Connection] | None = None

    async def __aenter__(self) -> "LoopbackUpstream":
        self._open = set()
        return self

    async def __aexit__(self, *exc: object) -> None:
        connections, self._open = self._open, None
        for connection in tuple(connections or ()):
            connection.break_off(ConnectionError("the engine was closed"))
        await asyncio.sleep(0)  # the turn of the loop in which their sockets are closed

    async def post(self, path: str, body: dict[str, Any], *, request_id: str | None = None) -> Connection:
        connection = await self._ask("POST", self._path + path, json_bytes(body), id_header(request_id))
        if not is_answer(connection.status, connection.content_type):
            raise await self._read_refusal(connection, path)
        return connection

    async def fetch(self, path: str, body: dict[str, Any]) -> bytes:
        try:
            return await _read_all(await self.post(path, body))
        except OSError as exc:
            raise broken(exc) from exc

    async def get(self, url: str) -> bytes:
        parts = urlsplit(urljoin(self.base_url, url))
        try:
            return await _read_all(await self._ask("GET", parts._replace(scheme="", netloc="").geturl()))
        except OSError as exc:
            raise unreachable(self.base_url, exc) from exc

    def linger(self, response: Response) -> None:
        response.close()

    async def _ask(
        self, method: str, target: str, data: bytes = b"", more: Mapping[str, str] | None = None
    ) -> Connection:
        """A response whose head has come."""
        headers = {**self._headers, **(more or {}), "Content-Length": str(len(data))}
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "\r\n"]
        request = "\r\n".join(lines).encode("ascii") + data
        connection = await self._connect()
        try:
            await connection.ask(request)
        except OSError as exc:
            raise unreachable(self.base_url, exc) from exc
        return connection

    async def _connect(self) -> Connection:
        if (others := self._open) is None:
            raise not_open()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.timeouts.connect):
                _, connection = await loop.create_connection(partial(Connection, loop, others), *self._address)
        except TimeoutError as exc:
            raise not_connected(self.base_url, self.timeouts.connect) from exc
        except OSError as exc:
            raise unreachable(self.base_url, exc) from exc
        if self._open is not others:  # it was closed meanwhile, which this connection has not heard
            connection.close()
            raise not_open()
        return connection

    async def _read_refusal(self, connection: Connection, path: str) -> EngineError:
        try:
            body = await _read_all(connection, at_most=ERROR_BYTES)
        except OSError:
            body = b""  # the status says enough
        return refusal(
            body,
            url=self.base_url + path,
            status=connection.status,
            content_type=connection.content_type,
            reason=connection.reason,
            retry_after=connection.headers.get("retry-after"),
        )


async def _read_all(connection: Connection, *, at_most: int | None = None) -> bytes:
    """The rest of a response, or the beginning of it. Raises OSError."""
    read = bytearray()
    try:
        while (at_most is None or len(read) < at_most) and (part := await connection.readany()):
            read += part
    finally:
        connection.close()
    return bytes(read[:at_most])
