"""The connections to one OpenAI-compatible server: send a body, get a response that is the beginning of an answer."""

import asyncio
import email.utils
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit
from weakref import WeakSet

import msgspec

from headrace.engine.refusals import engine_error
from headrace.errors import ConfigError, EngineDied, EngineProtocol, EngineRejected, EngineTimeout, EngineUnavailable

if TYPE_CHECKING:
    import aiohttp

_ANSWERS = ("text/event-stream", "application/json", "text/plain", "application/octet-stream")  # the last: no header
_ERROR_BYTES = 65536  # of an error page that are read
_LINGER = 0.2  # seconds a server has after [DONE] to end the response, so that the connection can be used again
_REACH = "Is the model server running, and is the base URL right?"


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. `first_token` counts from the request; `idle` is silence afterwards, and a server's pings break it."""

    connect: float = 2.0
    first_token: float = 120.0
    idle: float = 30.0


class Upstream:
    """A pool of connections to `base_url` (with or without `/v1`), open inside `async with`.

    `reuse=False` is for a server next door: a new connection costs 0.2 ms there, and none can be stale.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeouts: Timeouts | None = None,
        reuse: bool = True,
        max_event_bytes: int | None = 64 * 2**20,
    ) -> None:
        self.base_url = _with_path(base_url)
        self.timeouts = timeouts or Timeouts()
        self._reuse = reuse
        self.max_event_bytes = max_event_bytes
        # A compressing proxy would hold tokens back until its buffer is full.
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", **(headers or {})}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._session: aiohttp.ClientSession | None = None
        self._lingering: set[aiohttp.ClientResponse] = set()
        self._open: WeakSet[aiohttp.ClientResponse] = WeakSet()

    async def __aenter__(self) -> "Upstream":
        import aiohttp  # 150 ms that `import headrace` must not cost

        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=not self._reuse),
            timeout=aiohttp.ClientTimeout(total=None, connect=self.timeouts.connect),
            trace_configs=[_reuse_noted()],
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        session, self._session = self._session, None
        for response in tuple(self._lingering):
            self._part_with(response)
        self._break_off()
        if session is not None:
            await session.close()

    def _break_off(self) -> None:
        """Closing the session closes connections, but tells nobody who reads an answer from one of them."""
        from aiohttp import ClientConnectionError

        for response in tuple(self._open):
            if not response.content.is_eof():
                response.content.set_exception(ClientConnectionError("the engine was closed"))

    async def post(self, path: str, body: dict[str, Any], *, request_id: str | None = None) -> "aiohttp.ClientResponse":
        """Send, and wait for the head of a response that is an answer.

        Raises EngineUnavailable, EngineTimeout (connecting), EngineProtocol and what a refusal means.
        """
        import aiohttp

        if self._session is None:
            raise EngineUnavailable("The engine is not open.", hint="Enter it first: `async with engine:`.")
        headers = self._headers
        if request_id and request_id.isascii() and request_id.isprintable():
            headers = {**headers, "X-Request-Id": request_id}
        url = self.base_url + path
        data = _bytes(body)
        while True:
            connection = _Connection()
            try:
                response = await self._session.post(
                    url, data=data, headers=headers, allow_redirects=False, trace_request_ctx=connection
                )
            except aiohttp.ServerTimeoutError as exc:
                limit = f"{self.timeouts.connect:g} s"
                raise EngineTimeout(f"No connection to {_shown(url)} within {limit} (connect).", hint=_REACH) from exc
            except (aiohttp.ClientError, OSError) as exc:
                if connection.reused and isinstance(exc, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError):
                    continue  # the server had closed it meanwhile; each try takes one such connection from the pool
                message = f"The model server at {_shown(url)} cannot be reached: {exc}"
                raise EngineUnavailable(message, hint=_REACH) from exc
            await _require_answer(response)
            self._open.add(response)
            return response

    async def fetch(self, path: str, body: dict[str, Any]) -> bytes:
        """Send, and read the whole answer. Raises what `post` raises, and EngineDied."""
        import aiohttp

        try:
            async with await self.post(path, body) as response:
                return await response.read()
        except aiohttp.ClientError as exc:
            raise EngineDied(f"The connection to the model server broke: {exc}") from exc

    async def get(self, url: str) -> bytes:
        """The body at `url` of the same server, e.g. `/slots`. Raises EngineUnavailable, EngineDied."""
        import aiohttp

        if self._session is None:
            raise EngineUnavailable("The engine is not open.", hint="Enter it first: `async with engine:`.")
        try:
            async with self._session.get(urljoin(self.base_url, url), headers=self._headers) as response:
                return await response.read()
        except (aiohttp.ClientError, OSError) as exc:
            message = f"The model server at {_shown(self.base_url)} cannot be reached: {exc}"
            raise EngineUnavailable(message) from exc

    def linger(self, response: "aiohttp.ClientResponse") -> None:
        """Let go of an answer that has been read: its connection is used again if the server ends it soon."""
        self._lingering.add(response)
        asyncio.get_running_loop().call_later(_LINGER, self._part_with, response)

    def _part_with(self, response: "aiohttp.ClientResponse") -> None:
        self._lingering.discard(response)
        response.close()


class _Connection:
    """Whether a request went out on a connection that had been used before."""

    reused = False


def _reuse_noted() -> "aiohttp.TraceConfig":
    import aiohttp

    async def note(_session: object, context: SimpleNamespace, _params: object) -> None:
        if isinstance(context.trace_request_ctx, _Connection):
            context.trace_request_ctx.reused = True

    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(note)
    return trace


async def _require_answer(response: "aiohttp.ClientResponse") -> None:
    """Raises, and closes the response, unless it is the beginning of an answer."""
    if response.status == 200 and response.content_type in _ANSWERS:
        return
    try:
        body = (await response.content.read(_ERROR_BYTES)).decode("utf-8", "replace")
    finally:
        response.close()
    if response.status < 400:
        url = _shown(str(response.url))
        raise EngineProtocol(
            f"{url} answered {response.status} {response.content_type}, which is no model's answer.",
            hint="Check the base URL (it usually ends in /v1).",
        )
    said = _json_or_text(body) or response.reason
    raise engine_error(said, status=response.status, retry_after=_retry_after(response.headers))


def _with_path(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{url!r} is no URL of a model server.", hint="It looks like http://127.0.0.1:8000/v1.")
    return url.rstrip("/") + ("" if parts.path.strip("/") else "/v1")


def _shown(url: str) -> str:
    """Without the name and password that it may hold: errors reach clients and logs."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _bytes(body: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(body)
    except (ValueError, TypeError) as exc:
        raise EngineRejected(f"The request cannot be written as JSON: {exc}", hint="Send valid Unicode text.") from exc


def _json_or_text(body: str) -> object:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds; the header has seconds or a date."""
    value = headers.get("Retry-After", "")
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None
