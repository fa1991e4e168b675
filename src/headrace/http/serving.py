"""uvicorn, with a connection that keeps little for a client that does not read."""

import asyncio
import socket

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headrace.http.outlet import App

WRITE_HIGH_WATER = 16 * 1024
"""Bytes a socket may owe its client before we stop writing to it; the default would let 64 kB pile up."""


class Connection(HttpToolsProtocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)


class HttpServer(uvicorn.Server):
    """An async context manager around uvicorn's start and shutdown; signals are the caller's business."""

    def __init__(self, app: App, listening: socket.socket) -> None:
        self._listening = listening
        config = uvicorn.Config(
            app,
            http=Connection,
            ws="websockets-sansio",
            lifespan="off",
            access_log=False,
            log_config=None,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=2,
        )
        super().__init__(config)
        self._ticking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "HttpServer":
        if not self.config.loaded:
            self.config.load()
        self.lifespan = self.config.lifespan_class(self.config)
        await self.startup(sockets=[self._listening])
        self._ticking = asyncio.create_task(self.main_loop(), name="uvicorn")
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.should_exit = True
        if self._ticking is not None:
            await self._ticking
        await self.shutdown(sockets=[self._listening])
