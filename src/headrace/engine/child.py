"""A process that belongs to this one and ends with it: started, spoken to in lines of JSON, restarted when it dies.

For an engine whose library computes in the interpreter, or may abort it. The child reads requests from stdin and writes
what it has to say to stdout; when stdin closes it ends. What its library prints goes to a log.
"""

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

import msgspec

from headrace.engine.cores import model_environment
from headrace.errors import EngineError, EngineUnavailable

_logger = logging.getLogger(__name__)
_STOP = 2.0  # seconds until a process that should end is killed
_LOG_BYTES = 1 << 20
_LINE_BYTES = 1 << 22  # the longest line that a child may say
_FIRST_BACKOFF, _LAST_BACKOFF = 0.1, 10.0  # seconds between a death and the next start
_HEALTHY = 30.0  # seconds of life after which a death is not counted with the ones before

T = TypeVar("T")


class ChildProcess:
    """One life. Use `start`; `stop` in any case."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @classmethod
    async def start(cls, module: str, *, log: Path) -> "ChildProcess":
        """`python -m module`. What it needs to know is sent to it, so that nothing stands on its command line.

        Raises EngineUnavailable.
        """
        try:
            with open_process_log(log) as stderr:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", module),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=stderr,
                    env=model_environment(),
                    limit=_LINE_BYTES,
                )
        except OSError as exc:
            hint = f"It writes its log to {log}."
            raise EngineUnavailable(f"The engine's process cannot be started: {exc}", hint=hint) from exc
        return cls(process)

    def send(self, message: msgspec.Struct) -> None:
        """Without waiting. What is sent to a process that has ended is lost, and `line` says so."""
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(msgspec.json.encode(message) + b"\n")

    async def line(self) -> bytes:
        """What it says next; empty once it has ended."""
        assert self._process.stdout is not None
        return await self._process.stdout.readline()

    async def wait(self) -> int:
        """Its exit code, once it has ended. Negative for the signal that ended it."""
        return await self._process.wait()

    async def stop(self) -> None:
        """End it: its stdin closes, and if it does not listen it is killed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(_STOP):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


class Lives(Generic[T]):
    """One life after another, as an async context manager. Entering raises what keeps the first one from beginning.

    `live` is one life: it calls its argument with what others may use as soon as there is something, and returns
    an exit code when it is over. Raises EngineError when it does not begin.
    """

    def __init__(self, live: Callable[[Callable[[T], None]], Awaitable[int]], *, name: str) -> None:
        self.restarts = 0
        self._live = live
        self._name = name
        self._now: asyncio.Future[T] | None = None
        self._supervisor: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Lives[T]":
        self._now = asyncio.get_running_loop().create_future()
        self._supervisor = asyncio.create_task(self._supervise(), name=self._name)
        either: list[asyncio.Future[Any]] = [self._now, self._supervisor]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._supervisor.done():
                self._supervisor.result()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError, EngineError):
                await supervisor

    async def now(self, *, wait: float) -> T:
        """What the present life offers. Raises EngineUnavailable if there is none within `wait` seconds."""
        if self._supervisor is None or self._now is None:
            raise EngineUnavailable(
                f"The engine {self._name} is not open.", hint="Enter it first: `async with engine:`."
            )
        if not self._now.done():
            await asyncio.wait([self._now], timeout=wait)
        if not self._now.done():
            raise EngineUnavailable(f"The engine {self._name} is being restarted.", hint="Ask again in a moment.")
        return self._now.result()

    async def _supervise(self) -> None:
        """Raises only when the very first life does not begin."""
        loop = asyncio.get_running_loop()
        backoff = _FIRST_BACKOFF
        while True:
            started = loop.time()
            try:
                code = await self._one_life(loop)
                _logger.error("the engine %s died (%s); it is restarted", self._name, code)
            except EngineError as exc:
                if self.restarts == 0:
                    raise
                _logger.error("the engine %s cannot be restarted: %s (%s)", self._name, exc.message, exc.hint)
            backoff = _FIRST_BACKOFF if loop.time() - started > _HEALTHY else min(backoff * 2, _LAST_BACKOFF)
            self.restarts += 1
            await asyncio.sleep(backoff)

    async def _one_life(self, loop: asyncio.AbstractEventLoop) -> int:
        assert self._now is not None
        try:
            return await self._live(self._now.set_result)
        finally:
            if self._now.done():
                self._now = loop.create_future()


def open_process_log(path: Path) -> IO[bytes]:
    """For its owner only: a library may log prompts. It starts anew when it has grown large."""
    path.parent.mkdir(parents=True, exist_ok=True)
    large = path.exists() and path.stat().st_size > _LOG_BYTES
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if large else 0)
    return os.fdopen(os.open(path, flags, 0o600), "ab")
