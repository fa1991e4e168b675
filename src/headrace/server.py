"""The composition root: the only module that knows everybody.

Order of life: socket, log, engine, supervisor, HTTP; and back. Leaving drains: no new runs, runs finish within the
grace, connections are told to come back, what is unfinished is released for others, or for the next start.
"""

import asyncio
import gc
import logging
import os
import signal
import socket
from contextlib import AsyncExitStack
from types import TracebackType

from headrace.agent.app import App, Preparing, Progress, Warming
from headrace.config import Config
from headrace.engine.fallback import Fallback
from headrace.engine.pool.replicas import Replicas
from headrace.engine.port import Engine, Keeping
from headrace.engines import configured_engine
from headrace.errors import ConfigError
from headrace.http.api import RunsApi
from headrace.http.app import Application
from headrace.http.exchange import Keys
from headrace.http.openai import OpenAIApi
from headrace.http.operations import Operations
from headrace.http.page_files import page_routes
from headrace.http.pulse import Pulse
from headrace.http.replicas import ReplicasApi
from headrace.http.serving import HttpServer
from headrace.http.websocket import WebSocketEndpoint
from headrace.logs import open_log, warn_about_redis
from headrace.resilience.watchdog import watch_loop
from headrace.runs import Runs
from headrace.supervisor import Supervisor
from headrace.tools.processes import close_workers

logger = logging.getLogger("headrace.server")

SEND_BUFFER = 16 * 1024
"""Bytes that the kernel holds for a client that does not read (it takes twice as much); left to itself it would let
400 kB pile up for each. Token streams never need more, and a page of 60 kB is a few round trips."""


LEAVE_S = 15.0
"""How long a drained server waits for its runs to stop, in seconds."""
HURRY_S = 5.0
"""The same after a second signal."""

LINGER_S = 1.0
"""How long a drained server goes on to refuse new runs before it closes, in seconds. Clients ask again just when their
runs have ended. A balancer may repeat elsewhere what was refused, and learns from it to ask elsewhere; but a connection
that closes over a request is an error, because nobody knows whether it was carried out. Shorter than the two seconds
for which nginx then leaves this instance alone (deploy/instances.conf)."""


def _no_progress(what: str, done: int, total: int) -> None:
    pass


class Server:
    """A running server, as an async context manager. `url` is its address; `port` 0 takes any free one.

    Raises on entering:
        ConfigError: the port is taken, or what the configuration names is not there.
        LogLocked: another process owns the files.
        LogUnavailable: the Redis that keeps the runs does not answer.
    """

    def __init__(self, app: App, config: Config, *, progress: Progress = _no_progress) -> None:
        self._app = app
        self._config = config
        self._progress = progress
        self._stack = AsyncExitStack()
        self._draining = False
        self._engine: Engine | None = None
        self.port = config.server.port

    @property
    def url(self) -> str:
        host = self._config.server.host
        shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
        return f"http://{shown}:{self.port}"

    async def __aenter__(self) -> "Server":
        async with AsyncExitStack() as stack:
            await self._build(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def drain(self) -> None:
        """Take no new runs and let those under way finish, for as long as `server.drain_grace`.

        Where others serve the same runs it stays a moment longer: who asks is told to ask them.
        """
        self._draining = self.runs.draining = True
        await self.supervisor.drain(self._config.server.drain_grace)
        if self.log.adopt_every_s is not None:
            await asyncio.sleep(LINGER_S)
        self._pulse.go_away()

    def expect_successor(self) -> None:
        """Leave the embedded engine's process to the next server, which then need not load the weights."""
        ours = self._engine.engines if isinstance(self._engine, Fallback) else (self._engine,)
        engines: list[object] = [*ours, *self._app.own_engines]
        for engine in engines:
            if isinstance(engine, Keeping):
                engine.keep()

    async def _build(self, stack: AsyncExitStack) -> None:
        config = self._config
        listening = stack.enter_context(_listen(config.server.host, config.server.port))
        self.port = listening.getsockname()[1]
        stack.callback(close_workers)
        self.log = await stack.enter_async_context(open_log(config))
        if config.log.url is not None:
            await warn_about_redis(config.log.url)
        self._engine = engine = await self._open_engines(stack)
        for agent in self._app.agents.values():
            if isinstance(agent, Preparing):
                await agent.prepare(self._progress)
        self.supervisor = await stack.enter_async_context(
            Supervisor(
                log=self.log,
                agents=self._app.agents,
                engine=engine,
                max_active=config.run.max_active,
                max_crashes=config.run.max_crashes,
                deadline=config.run.deadline,
            )
        )
        agents = {agent.name: agent.description for agent in self._app.agents.values()}
        self.runs = Runs(log=self.log, agents=agents, launch=self.supervisor.launch, early=self._app.commits_first)
        self._pulse = Pulse(config.server.heartbeat)
        group = await stack.enter_async_context(asyncio.TaskGroup())
        beating = group.create_task(self._pulse.run(), name="heartbeats")
        stack.callback(beating.cancel)
        await stack.enter_async_context(
            HttpServer(self._application(), listening, max_message=config.limits.frame_bytes)
        )
        for warming in (agent for agent in self._app.agents.values() if isinstance(agent, Warming)):
            stack.callback(group.create_task(_warm(warming, engine), name="warming").cancel)
        stack.callback(self._pulse.go_away)  # whatever still streams is cut before the connections are waited for
        await stack.enter_async_context(watch_loop())

    def _application(self) -> Application:
        config = self._config
        operations = Operations({"draining": lambda: not self._draining, "log": lambda: self.log.writable})
        protocols = [*RunsApi(self.runs, self._pulse).routes(), *OpenAIApi(self.runs, self._pulse).routes()]
        replicas = ReplicasApi(Replicas([self._engine, *self._app.own_engines]), operators=config.auth.operators)
        routes = [*protocols, *operations.routes(), *replicas.routes(), *page_routes()]
        return Application(
            routes,
            socket=WebSocketEndpoint(self.runs, self._pulse),
            keys=Keys(config.auth.keys),
            max_body=config.limits.body_bytes,
            cors_origins=config.server.cors_origins,
        )

    async def _open_engines(self, stack: AsyncExitStack) -> Engine | None:
        """Start the server's engine, if an agent needs it, and every agent's own."""
        own = self._app.own_engines
        for engine in own:
            await stack.enter_async_context(engine)
        if self._app.engine is not None and self._app.engine in own:
            return self._app.engine
        if self._app.engine is None and not self._app.needs_engine:
            return None
        return await stack.enter_async_context(self._app.engine or configured_engine(self._config.engine))


async def _warm(agent: Warming, engine: Engine | None) -> None:
    try:
        await agent.warm(engine)
    except Exception:
        logger.warning("an agent could not be warmed; its first answers take longer", exc_info=True)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
    try:
        listening.bind((host, port))
    except OSError as exc:
        listening.close()
        raise ConfigError(
            f"{host}:{port} cannot be listened on: {exc.strerror}.", hint="Choose another with --port (0 takes any)."
        ) from exc
    listening.setblocking(False)
    return listening


async def serve(server: Server, *, ready: "asyncio.Event | None" = None) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a second signal ends at once.

    SIGTERM is a restart: the embedded engine's process waits for the next server. Ctrl-C in a terminal ends it too.

    Nobody can stop an agent that ignores its cancellation: the process then ends without it, and the run goes on, or
    ends, at the next start.
    """
    loop = asyncio.get_running_loop()
    stopping, hurry = asyncio.Event(), asyncio.Event()
    patience: list[asyncio.TimerHandle] = []

    def stop(name: signal.Signals) -> None:
        if name == signal.SIGTERM:
            server.expect_successor()
        if stopping.is_set():
            hurry.set()
            patience.append(loop.call_later(HURRY_S, _abandon, server))
        stopping.set()

    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop, name)
    async with server:
        _forget_the_start()
        if ready is not None:
            ready.set()
        await stopping.wait()
        draining = asyncio.ensure_future(server.drain())
        hurrying = asyncio.ensure_future(hurry.wait())
        await asyncio.wait([draining, hurrying], return_when=asyncio.FIRST_COMPLETED)
        for task in (draining, hurrying):
            task.cancel()
        patience.append(loop.call_later(LEAVE_S, _abandon, server))
    for timer in patience:
        timer.cancel()


def _forget_the_start() -> None:
    """The garbage collector stops the loop while it looks at everything that lives: 15 to 25 ms of modules and settings
    that live as long as the process. It need not look at them (gc.freeze in Python's manual)."""
    gc.collect()
    gc.freeze()


def _abandon(server: Server) -> None:
    logger.error("the process ends without %d runs, whose agents ignore their cancellation", server.supervisor.active)
    logging.shutdown()
    os._exit(1)
