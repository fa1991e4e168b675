"""The ASGI application: which path does what, who may, and what an error looks like.

No middleware: whatever wraps `send` costs every token. A route's endpoint answers, or returns a stream; then the
application waits here, in one short frame, until the client has gone.
"""

import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from headrace.errors import HeadraceError
from headrace.http.exchange import Exchange, Keys
from headrace.http.outlet import Receive, Scope, Send

logger = logging.getLogger("headrace.http")


class Stream(Protocol):
    """An answer that goes on after its endpoint has returned. `close` is called once the client has gone."""

    def close(self) -> None: ...


Endpoint = Callable[[Exchange], Awaitable[Stream | None]]
SocketEndpoint = Callable[[Scope, Receive, Send, str], Awaitable[None]]


class Route(msgspec.Struct, frozen=True):
    """`path` holds `{name}` for one segment. `public` routes need no key; `errors` answers in another dialect."""

    method: str
    path: str
    endpoint: Endpoint
    public: bool = False
    errors: Callable[[Exchange, HeadraceError], Awaitable[None]] | None = None


class NotFound(HeadraceError):
    code = "not_found"


class MethodNotAllowed(HeadraceError):
    """`allowed` are the methods that are."""

    code = "method_not_allowed"

    def __init__(self, message: str, *, hint: str | None = None, allowed: str = "") -> None:
        super().__init__(message, hint=hint)
        self.allowed = allowed


class Application:
    """Routes requests. `cors_origins` are allowed to call from a browser; `socket` takes WebSockets at `/ws`."""

    def __init__(
        self,
        routes: Sequence[Route],
        *,
        socket: SocketEndpoint,
        keys: Keys,
        max_body: int,
        cors_origins: Sequence[str] = (),
    ) -> None:
        self._exact = {(r.method, r.path): r for r in routes if "{" not in r.path}
        self._patterns = [(_pattern(r.path), r) for r in routes if "{" in r.path]
        self._socket = socket
        self._keys = keys
        self._max_body = max_body
        self._origins = frozenset(cors_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._upgrade(scope, receive, send)
            return
        stream = await self._answer(scope, receive, send)
        if stream is None:
            return
        scope["headers"].clear()  # nobody reads them again, and a stream may stay for hours: 1 kB
        try:
            while (await receive())["type"] != "http.disconnect":
                pass
        finally:
            stream.close()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> Stream | None:
        exchange = Exchange(scope=scope, receive=receive, send=send, max_body=self._max_body)
        self._allow_origin(exchange)
        route: Route | None = None
        try:
            if scope["method"] == "OPTIONS":
                await _preflight(exchange)
                return None
            route, exchange.path_values = self._route(scope["method"], scope["path"])
            if not route.public:
                exchange.tenant = self._keys.tenant(exchange.header(b"authorization"))
            return await route.endpoint(exchange)
        except HeadraceError as error:
            await _answer_error(exchange, route, error)
        except Exception:
            logger.exception("%s %s failed", scope["method"], scope["path"])
            await _answer_error(exchange, route, HeadraceError("Something went wrong here; it has been logged."))
        return None

    def _route(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        exact = self._exact.get((method, path))
        if exact is not None:
            return exact, {}
        shown = self._exact.get(("GET", path)) if method == "HEAD" else None
        if shown is not None and shown.public:  # whoever looks whether the page or the server is there
            return shown, {}
        allowed = {m for m, p in self._exact if p == path}
        for pattern, route in self._patterns:
            match = pattern.fullmatch(path)
            if match and route.method == method:
                return route, match.groupdict()
            if match:
                allowed.add(route.method)
        if allowed:
            names = ", ".join(sorted(allowed))
            raise MethodNotAllowed(f"{path} does not take {method}.", hint=f"It takes {names}.", allowed=names)
        raise NotFound(f"There is nothing at {path[:200]}.", hint="PROTOCOL.md lists what there is.")

    async def _upgrade(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        authorization = next((v.decode("latin-1") for n, v in scope["headers"] if n == b"authorization"), None)
        try:
            if scope["path"] != "/ws":
                raise NotFound("WebSockets are served at /ws.")
            tenant = self._keys.tenant(authorization)
        except HeadraceError:
            await send({"type": "websocket.close", "code": 4500})
            return
        await self._socket(scope, receive, send, tenant)

    def _allow_origin(self, exchange: Exchange) -> None:
        origin = exchange.header(b"origin") if self._origins else None
        if origin is not None and (origin in self._origins or "*" in self._origins):
            exchange.extra_headers += [
                (b"access-control-allow-origin", origin.encode("latin-1")),
                (b"access-control-expose-headers", b"location, x-run-id, x-heartbeat-interval, retry-after"),
                (b"vary", b"origin"),
            ]


async def _preflight(exchange: Exchange) -> None:
    exchange.extra_headers += [
        (b"access-control-allow-methods", b"GET, POST, DELETE"),
        (b"access-control-allow-headers", b"authorization, content-type, idempotency-key, last-event-id, prefer"),
        (b"access-control-max-age", b"86400"),
    ]
    await exchange.respond_empty(204)


async def _answer_error(exchange: Exchange, route: Route | None, error: HeadraceError) -> None:
    """A response that has begun cannot become an error: it is cut, and the client comes back."""
    if exchange.started:
        raise error
    if isinstance(error, MethodNotAllowed):
        exchange.extra_headers.append((b"allow", error.allowed.encode()))
    if route is not None and route.errors is not None:
        await route.errors(exchange, error)
    else:
        await exchange.answer_error(error)


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]{1,200})", path))
