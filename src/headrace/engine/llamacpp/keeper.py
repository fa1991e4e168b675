"""Keeps one embedded process at work: one life after another, and whoever asks gets the one that is ready."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.engine.llamacpp.parameters import LlamaCppParameters
from headrace.engine.llamacpp.process import LlamaCppProcess
from headrace.engine.llamacpp.server import LlamaCppServer
from headrace.errors import EngineError, EngineUnavailable, HeadraceError

_log = logging.getLogger(__name__)
_FIRST_BACKOFF, _LAST_BACKOFF = 0.1, 10.0  # seconds between a death and the next start
_HEALTHY = 30.0  # seconds of life after which a death is not counted with the ones before
_ANSWERS = 10.0  # seconds in which a process that was found says that it still works


class Keeper:
    """`adapter` makes the client of a process, `check` says whether one may be started at all."""

    def __init__(
        self,
        parameters: LlamaCppParameters,
        *,
        home: Path | None,
        log: Path,
        adapter: Callable[[LlamaCppProcess], LlamaCppServer],
        check: Callable[[], None],
    ) -> None:
        self.restarts = 0
        self.process: LlamaCppProcess | None = None
        self.keep = False
        self._parameters = parameters
        self._home = home
        self._log_path = log
        self._adapter = adapter
        self._check = check
        self._server: asyncio.Future[LlamaCppServer] = asyncio.get_running_loop().create_future()
        self._supervisor: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Until the first process is ready. Raises ConfigError, EngineError: why there is none."""
        self._supervisor = asyncio.create_task(self._supervise(), name="llamacpp")
        try:
            either: list[asyncio.Future[Any]] = [self._server, self._supervisor]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            await self.stop()
            raise
        if self._supervisor.done():
            self._supervisor.result()

    async def stop(self) -> None:
        """Let go of the process: with `keep` it waits for the next server, else it ends unless others use it."""
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError, HeadraceError):
                await supervisor

    async def ready(self, wait: float) -> LlamaCppServer:
        """The client of the process that is ready, if need be in `wait` seconds. Raises EngineUnavailable."""
        if self._supervisor is None:
            raise EngineUnavailable("The embedded engine is not open.", hint="Enter it first: `async with engine:`.")
        if not self._server.done():
            await asyncio.wait([self._server], timeout=wait)
        if not self._server.done():
            raise EngineUnavailable("The embedded engine is being restarted.", hint=f"Its log is {self._log_path}.")
        return self._server.result()

    async def _supervise(self) -> None:
        """One life after another. Raises only when the very first does not begin."""
        backoff = _FIRST_BACKOFF
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            try:
                await self._live()
                _log.error("the embedded engine died; it is restarted. Its log is %s", self._log_path)
            except HeadraceError as exc:
                if self.restarts == 0:
                    raise
                _log.error("the embedded engine cannot be restarted: %s (%s)", exc.message, exc.hint)
            backoff = _FIRST_BACKOFF if loop.time() - started > _HEALTHY else min(backoff * 2, _LAST_BACKOFF)
            self.restarts += 1
            await asyncio.sleep(backoff)

    async def _live(self) -> None:
        """One life of the process, from the moment it is reached to its end."""
        self.process = process = await LlamaCppProcess.reach(
            self._parameters, home=self._home, log=self._log_path, check=self._check
        )
        try:
            async with self._adapter(process) as server:
                if await _works(server, process):
                    self._server.set_result(server)
                    await process.wait()
        finally:
            if self._server.done():
                self._server = asyncio.get_running_loop().create_future()
            self.process = None
            await process.leave(keep=self.keep)


async def _works(server: LlamaCppServer, process: LlamaCppProcess) -> bool:
    """A new one answers with a token. One that was found may have many before us: it only has to say that it runs, or
    it is killed. Raises what a first answer raises."""
    if not process.found:
        await server.warm_up()
        return True
    try:
        async with asyncio.timeout(_ANSWERS):
            await server.get("/slots")
    except (EngineError, TimeoutError):
        _log.warning("the embedded engine's process %d does not answer; it is replaced", process.pid)
        process.kill()
        return False
    return True
