"""The server a command talks to: the one at --url, or, for `run`, the demo in this process."""

import argparse
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from headrace.cli.arguments import DEFAULT_URL
from headrace.client import AsyncClient
from headrace.client.http import Http
from headrace.errors import HeadraceError, ServerUnreachable


def client_for(options: argparse.Namespace) -> AsyncClient:
    """A client of the running server. Impatient: a person waits."""
    return AsyncClient(options.url or DEFAULT_URL, options.api_key, patience=10.0)


@asynccontextmanager
async def client_or_demo(options: argparse.Namespace) -> AsyncGenerator[AsyncClient, None]:
    """The server at --url; without --url and without a server at the usual place, the demo on a port of its own.

    Raises:
        ServerUnreachable: --url names one that does not answer.
    """
    url = options.url or DEFAULT_URL
    if await answers(url):
        async with client_for(options) as client:
            yield client
    elif options.url:
        raise ServerUnreachable(
            f"Nothing answers at {url}.", hint="Start it with `headrace serve`, or leave --url out."
        )
    else:
        async with _demo(options) as client:
            yield client


async def answers(url: str) -> bool:
    """Whether a server is there and well, asked once."""
    http = Http(url, patience=0)
    try:
        await http.request("GET", "/healthz")
    except HeadraceError:
        return False
    finally:
        await http.close()
    return True


@asynccontextmanager
async def _demo(options: argparse.Namespace) -> AsyncGenerator[AsyncClient, None]:
    from headrace.cli.serve import DEMO, load_app
    from headrace.cli.settings import configured
    from headrace.cli.terminal import ProgressBar
    from headrace.server import Server

    setattr(options, "server.port", 0)
    config = configured(options).config
    async with (
        Server(load_app(DEMO), config, progress=ProgressBar()) as server,
        AsyncClient(server.url, next(iter(config.auth.keys.values()), None)) as client,
    ):
        yield client
