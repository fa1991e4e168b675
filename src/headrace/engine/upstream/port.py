"""What an adapter needs of the connections to a model server: `pooled.py` reaches any server, `loopback.py` one that
is a process of ours next door."""

from typing import Any, Protocol, Self

import msgspec


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. `first_token` counts from the request; `idle` is silence afterwards, and a server's pings break it."""

    connect: float = 2.0
    first_token: float = 120.0
    idle: float = 30.0


MAX_EVENT_BYTES = 64 * 2**20
"""Of one event of an answer. What is larger is no answer that anybody waits for."""


class Body(Protocol):
    async def readany(self) -> bytes:
        """What has come, b"" at the end. Raises when the connection has broken."""
        ...


class Response(Protocol):
    """The beginning of an answer. aiohttp's response is one as it is, hence `content`: a layer more on the way of each
    token would cost."""

    @property
    def content_type(self) -> str: ...

    @property
    def content(self) -> Body: ...

    def close(self) -> None:
        """End it, wherever it is: this is how a server learns that nobody wants the rest."""
        ...


class Upstream(Protocol):
    """Open inside `async with`. What it raises is an EngineError."""

    base_url: str
    timeouts: Timeouts
    max_event_bytes: int | None
    """Of one event of an answer, None for no bound."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None:
        """Break off what is under way: who reads it is told."""
        ...

    async def post(self, path: str, body: dict[str, Any], *, request_id: str | None = None) -> Response:
        """Send, and wait for the head of a response that is an answer.

        Raises EngineUnavailable, EngineTimeout (connecting), EngineProtocol and what a refusal means.
        """
        ...

    async def fetch(self, path: str, body: dict[str, Any]) -> bytes:
        """Send, and read the whole answer. Raises what `post` raises, and EngineDied."""
        ...

    async def get(self, url: str) -> bytes:
        """The body at `url` of the same server, e.g. `/slots`. Raises EngineUnavailable."""
        ...

    def linger(self, response: Response) -> None:
        """Let go of an answer that has been read, though the server may not have ended it yet."""
        ...
