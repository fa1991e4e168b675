"""One life of the embedded server's process: started, loading, ready, ended."""

import asyncio
import contextlib
import os
import secrets
import sys
from pathlib import Path
from typing import IO

import msgspec

from headrace.engine.llamacpp_child import ChildState, LlamaCppParameters
from headrace.errors import EngineUnavailable

_STOP = 2.0  # seconds until a process that should end is killed
_LOG_BYTES = 1 << 20


class LlamaCppProcess:
    """Use `start`; `stop` in any case."""

    def __init__(self, process: asyncio.subprocess.Process, api_key: str, log: Path) -> None:
        self.api_key = api_key
        self.url = ""
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    @classmethod
    async def start(
        cls, model_path: Path, *, alias: str, threads: int, context: int, slots: int, kv: str, log: Path
    ) -> "LlamaCppProcess":
        """The process, not ready yet. Nothing of what it is told stands on its command line.

        Raises EngineUnavailable.
        """
        parameters = LlamaCppParameters(
            model_path=str(model_path),
            alias=alias,
            api_key=secrets.token_urlsafe(32),
            threads=threads,
            context=context,
            slots=slots,
            kv=kv,
            parent=os.getpid(),
        )
        try:
            with _open_log(log) as stderr:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", "headrace.engine.llamacpp_child"),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=stderr,
                    start_new_session=True,  # the terminal's Ctrl-C is for the server, which then ends this one
                )
        except OSError as exc:
            hint = f"It writes its log to {log}."
            raise EngineUnavailable(f"The embedded engine's process cannot be started: {exc}", hint=hint) from exc
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(parameters) + b"\n")
        return cls(process, parameters.api_key, log)

    async def ready(self) -> None:
        """Wait until the model is loaded and `url` is known. Raises EngineUnavailable, saying why it is not."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            said = msgspec.json.decode(line, type=ChildState)
            if said.state == "failed":
                raise self._unavailable(said.reason)
            if said.state == "ready":
                self.url = said.url
                return
        raise self._unavailable(f"its process ended with {await self._process.wait()}")

    async def wait(self) -> int:
        """Wait until it ends. Negative for the signal that ended it."""
        return await self._process.wait()

    async def ends_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._process.wait()
                await asyncio.sleep(0.01)  # whoever else waits for its end comes first
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """End it: its stdin closes, and if it does not listen it is killed."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(_STOP):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    def _unavailable(self, reason: str) -> EngineUnavailable:
        hint = f"Its own words are in {self._log}. If the model file is damaged, install it again."
        return EngineUnavailable(f"The embedded engine did not start: {reason}.", hint=hint)


def _open_log(path: Path) -> IO[bytes]:
    """For its owner only: llama.cpp may log prompts. It starts anew when it has grown large."""
    path.parent.mkdir(parents=True, exist_ok=True)
    large = path.exists() and path.stat().st_size > _LOG_BYTES
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if large else 0)
    return os.fdopen(os.open(path, flags, 0o600), "ab")
