"""A pool of connections to any model server: TLS, proxies, connections that are used again."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin
from weakref import WeakSet

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

if TYPE_CHECKING:
    import aiohttp

_LINGER = 0.2  # seconds a server has after [DONE] to end the response, so that the connection can be used again


class PooledUpstream:
    """See `port.Upstream`. `base_url` comes with or without `/v1`."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeouts: Timeouts | None = None,
        max_event_bytes: int | None = MAX_EVENT_BYTES,
    ) -> None:
        self.base_url = with_path(base_url)
        self.timeouts = timeouts or Timeouts()
        self.max_event_bytes = max_event_bytes
        self._headers = headers_of(api_key, headers)
        self._session: aiohttp.ClientSession | None = None
        self._lingering: set[Response] = set()
        self._open: WeakSet[aiohttp.ClientResponse] = WeakSet()

    async def __aenter__(self) -> "PooledUpstream":
        import aiohttp  # 150 ms that `import headrace` must not cost

        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
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
        import aiohttp

        if self._session is None:
            raise not_open()
        headers = {**self._headers, **id_header(request_id)}
        url = self.base_url + path
        data = json_bytes(body)
        while True:
            reuse = _Reuse()
            try:
                response = await self._session.post(
                    url, data=data, headers=headers, allow_redirects=False, trace_request_ctx=reuse
                )
            except aiohttp.ServerTimeoutError as exc:
                raise not_connected(url, self.timeouts.connect) from exc
            except (aiohttp.ClientError, OSError) as exc:
                if reuse.seen and isinstance(exc, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError):
                    continue  # the server had closed it meanwhile; each try takes one such connection from the pool
                raise unreachable(url, exc) from exc
            await _require_answer(response)
            self._open.add(response)
            return response

    async def fetch(self, path: str, body: dict[str, Any]) -> bytes:
        import aiohttp

        try:
            async with await self.post(path, body) as response:
                return await response.read()
        except aiohttp.ClientError as exc:
            raise broken(exc) from exc

    async def get(self, url: str) -> bytes:
        import aiohttp

        if self._session is None:
            raise not_open()
        try:
            async with self._session.get(urljoin(self.base_url, url), headers=self._headers) as response:
                return await response.read()
        except (aiohttp.ClientError, OSError) as exc:
            raise unreachable(self.base_url, exc) from exc

    def linger(self, response: Response) -> None:
        """Its connection is used again if the server ends it soon."""
        self._lingering.add(response)
        asyncio.get_running_loop().call_later(_LINGER, self._part_with, response)

    def _part_with(self, response: Response) -> None:
        self._lingering.discard(response)
        response.close()


class _Reuse:
    """Whether a request went out on a connection that had been used before."""

    seen = False


def _reuse_noted() -> "aiohttp.TraceConfig":
    import aiohttp

    async def note(_session: object, context: SimpleNamespace, _params: object) -> None:
        if isinstance(context.trace_request_ctx, _Reuse):
            context.trace_request_ctx.seen = True

    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(note)
    return trace


async def _require_answer(response: "aiohttp.ClientResponse") -> None:
    """Raises, and closes the response, unless it is the beginning of an answer."""
    import aiohttp

    if is_answer(response.status, response.content_type):
        return
    try:
        body = await response.content.read(ERROR_BYTES)
    except aiohttp.ClientError:
        body = b""  # the status says enough
    finally:
        response.close()
    raise refusal(
        body,
        url=str(response.url),
        status=response.status,
        content_type=response.content_type,
        reason=response.reason,
        retry_after=response.headers.get("Retry-After"),
    )
