"""The way to one server: requests that are repeated until they are answered, and streams that are opened once."""

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aiohttp
import msgspec

from headrace.client.problems import error_from
from headrace.client.retry import Retry
from headrace.client.session import HEARTBEAT_S
from headrace.errors import ConfigError, ProtocolBroken

T = TypeVar("T")

COME_BACK = frozenset({408, 425, 429, 502, 503, 504})
"""Statuses that say "later", with or without Retry-After."""

CONNECT_S = 10.0
ANSWER_S = 30.0
"""Seconds for an answer's headers and body; streams have their watchdog instead."""


class Lost(Exception):
    """The link broke, or the server asked to come back after `after` seconds. Never leaves this package."""

    def __init__(self, reason: str, *, after: float = 0.0) -> None:
        super().__init__(reason)
        self.after = after


class Answer(msgspec.Struct, frozen=True):
    status: int
    headers: Mapping[str, str]
    body: bytes

    def read(self, wanted: type[T]) -> T:
        """Raises ProtocolBroken when the body is something else."""
        try:
            return msgspec.json.decode(self.body, type=wanted)
        except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
            raise ProtocolBroken(f"The answer cannot be read: {exc}.", hint="Is this a Headrace server?") from exc


class WebSocket(aiohttp.ClientWebSocketResponse):
    """aiohttp's, with the headers of the server's answer."""

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers


class Http:
    """`patience`: seconds without progress until ServerUnreachable; None waits for ever, 0 asks once."""

    def __init__(self, base_url: str, *, api_key: str | None = None, patience: float | None = 60.0) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise ConfigError(f"{base_url!r} is not a server's address.", hint="Write it as http://127.0.0.1:8321.")
        self.base_url = base_url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._patience = patience
        self._session: aiohttp.ClientSession | None = None

    def retry(self) -> Retry:
        return Retry(asyncio.get_running_loop().time(), patience=self._patience)

    @property
    def session(self) -> aiohttp.ClientSession:
        """Opened at the first use, in the loop that uses it."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(
                headers=self._headers, timeout=timeout, connector=connector, ws_response_class=WebSocket
            )
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Answer:
        """Ask until there is an answer. What would do its work twice carries an `Idempotency-Key`.

        Raises:
            HeadraceError: the server refused, by its code.
            ServerUnreachable: no answer within the patience.
        """
        retry = self.retry()
        while True:
            try:
                return await self._once(method, path, body=body, headers=headers or {}, query=query or {})
            except Lost as lost:
                wait = retry.wait(asyncio.get_running_loop().time(), reason=str(lost), at_least=lost.after)
            await asyncio.sleep(wait)

    async def _once(
        self, method: str, path: str, *, body: Any, headers: Mapping[str, str], query: Mapping[str, str]
    ) -> Answer:
        data = None if body is None else msgspec.json.encode(body)
        sent = {"Content-Type": "application/json", **headers} if data is not None else dict(headers)
        try:
            async with (
                asyncio.timeout(ANSWER_S),
                self.session.request(method, self.base_url + path, data=data, headers=sent, params=query) as response,
            ):
                answer = Answer(response.status, response.headers, await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            raise lost_by(exc) from exc
        _refuse(answer)
        return answer

    @asynccontextmanager
    async def stream(
        self, path: str, *, headers: Mapping[str, str], query: Mapping[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A response whose body is still to come: 200, or 204 for nothing more.

        Raises:
            Lost: try again.
            HeadraceError: the server refused, by its code.
        """
        sent = {"Accept": "text/event-stream", **headers}
        try:
            async with asyncio.timeout(ANSWER_S):
                response = await self.session.get(self.base_url + path, headers=sent, params=query)
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            raise lost_by(exc) from exc
        async with response:
            if response.status not in (200, 204):
                _refuse(Answer(response.status, response.headers, await _body(response)))
            yield response


def lost_by(exc: BaseException) -> Lost:
    """A transport's failure as ours. A wrong address is not a lost link.

    Raises:
        ConfigError: the address can never work.
    """
    if isinstance(exc, aiohttp.InvalidURL):
        raise ConfigError(f"{exc} is not a server's address.", hint="Write it as http://127.0.0.1:8321.") from exc
    return Lost(str(exc) or type(exc).__name__)


def heartbeat_of(headers: Mapping[str, str]) -> float:
    """Seconds between the server's heartbeats, as it says in its headers."""
    try:
        seconds = float(headers.get("X-Heartbeat-Interval", HEARTBEAT_S))
    except ValueError:
        return HEARTBEAT_S
    return seconds if 0 < seconds < math.inf else HEARTBEAT_S


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds from Retry-After, 0 when it is absent or a date that has passed."""
    text = headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdecimal():
        return float(text)
    return _until(text) if text else 0.0


def _until(date: str) -> float:
    import time
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(date).timestamp() - time.time())
    except ValueError:
        return 0.0


def _refuse(answer: Answer) -> None:
    if answer.status in COME_BACK:
        error = error_from(answer.status, answer.body)
        raise Lost(f"{answer.status}, {error.message}", after=retry_after(answer.headers))
    if answer.status >= 400:
        raise error_from(answer.status, answer.body)


async def _body(response: aiohttp.ClientResponse) -> bytes:
    try:
        async with asyncio.timeout(ANSWER_S):
            return await response.read()
    except (aiohttp.ClientError, TimeoutError, OSError) as exc:
        raise lost_by(exc) from exc
