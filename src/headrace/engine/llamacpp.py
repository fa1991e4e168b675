"""The embedded engine: llama.cpp in a supervised child process, spoken to over its loopback HTTP with a secret.

When the process dies it is started again. Answers in flight then raise EngineDied (or EngineUnavailable, if nothing
had been generated), and requests that come meanwhile wait for it, up to a bound.
"""

import asyncio
import contextlib
import importlib.util
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from headrace.engine.admission import require_supported
from headrace.engine.llamacpp_process import LlamaCppProcess
from headrace.engine.models import cache_dir
from headrace.engine.openai import OpenAIEngine
from headrace.engine.port import PARAMETERS, Capabilities, Chunk, ModelRequest
from headrace.engine.prompts import frame_for, strip_start
from headrace.engine.upstream import Timeouts
from headrace.errors import ConfigError, EngineError, EngineUnavailable

_log = logging.getLogger(__name__)
_FIRST_BACKOFF, _LAST_BACKOFF = 0.1, 10.0  # seconds between a death and the next start
_DYING = 1.0  # seconds in which a process that refuses connections is seen to have ended
_HEALTHY = 30.0  # seconds of life after which a death is not counted with the ones before


class LlamaCppEngine:
    """Answers with the GGUF file at `model_path`. Entering it starts the process and waits until it has answered once.

    `slots` answers are generated at once, each with `context` tokens; more requests wait in the engine. `kv` is the
    type of the KV cache. `threads` defaults to one less than the cores this process may use, so that the event loop
    keeps one. `base` says that the model only continues text, so that chats are framed (`prompts.py`). `tools` says
    that the model is able to call tools; the small default one is not. `restart_wait` is how long, in seconds, a
    request waits for a restart.
    """

    name = "llamacpp"

    def __init__(
        self,
        model_path: Path,
        *,
        model: str | None = None,
        threads: int | None = None,
        context: int = 2048,
        slots: int = 4,
        kv: str = "q8_0",
        base: bool = False,
        tools: bool = False,
        restart_wait: float = 15.0,
        timeouts: Timeouts | None = None,
        log: Path | None = None,
    ) -> None:
        self.model = model or model_path.stem
        self.capabilities = Capabilities(
            tools=tools,
            sampling=PARAMETERS,
            logprobs=True,
            grammar=True,
            json_schema=True,
            thinking=True,
            raw_prompt=True,
            continuation=True,
            context_tokens=context,
            slots=slots,
        )
        self.restarts = 0
        self._model_path = model_path
        self._threads = threads or max(1, usable_cores() - 1)
        self._kv = kv
        self._base = base
        self._restart_wait = restart_wait
        self._timeouts = timeouts or Timeouts(first_token=300.0)
        self._log_path = log or cache_dir() / "logs" / "llamacpp.log"
        self._server: asyncio.Future[OpenAIEngine] | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._process: LlamaCppProcess | None = None

    @property
    def pid(self) -> int | None:
        """Of the process that is running now."""
        return self._process.pid if self._process is not None else None

    async def __aenter__(self) -> "LlamaCppEngine":
        """Raises ConfigError, EngineUnavailable: what is missing, and how to get it."""
        self._require_parts()
        self._server = asyncio.get_running_loop().create_future()
        self._supervisor = asyncio.create_task(self._supervise(), name="llamacpp")
        try:
            await self._first_start()
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

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[Chunk], None]:
        require_supported(request, self.capabilities, engine=self.name)
        framed = self._base and request.prompt is None and request.continued is None
        async with AsyncExitStack() as stack:
            chunks = await self._begun(self._adapted(request), stack)
            yield strip_start(chunks) if framed else chunks

    async def _begun(self, request: ModelRequest, stack: AsyncExitStack) -> AsyncIterator[Chunk]:
        """The answer of a server that has accepted the request: nobody meets one that is just dying."""
        while True:
            server, process = await self._ready_server(), self._process
            answer = await stack.enter_async_context(server.answer(request))
            try:
                await answer.begin()
                return answer
            except EngineUnavailable:
                if process is None or not await process.ends_within(_DYING):
                    raise

    async def busy_slots(self) -> int:
        """How many answers are being generated at this moment."""
        server = await self._ready_server()
        slots = msgspec.json.decode(await server.get("/slots"), type=list[_Slot])
        return sum(slot.is_processing for slot in slots)

    def _adapted(self, request: ModelRequest) -> ModelRequest:
        if self._base and request.prompt is None:
            request = frame_for(request.messages).apply(request)
        # It notices a closed connection only when it writes, so it must write while it reads the prompt.
        extra = {"return_progress": True, **request.extra}
        if request.prompt is not None and request.json_schema is not None:
            extra["json_schema"] = request.json_schema  # its completions ignore response_format
            request = msgspec.structs.replace(request, json_schema=None)
        return msgspec.structs.replace(request, extra=extra)

    async def _ready_server(self) -> OpenAIEngine:
        if self._server is None or self._supervisor is None:
            raise EngineUnavailable("The embedded engine is not open.", hint="Enter it first: `async with engine:`.")
        if self._server.done():
            return self._server.result()
        await asyncio.wait([self._server], timeout=self._restart_wait)
        if not self._server.done():
            raise EngineUnavailable("The embedded engine is being restarted.", hint=f"Its log is {self._log_path}.")
        return self._server.result()

    def _require_parts(self) -> None:
        if importlib.util.find_spec("xllamacpp") is None:
            raise ConfigError(
                "The embedded engine is not installed.", hint="Install it: pip install 'headrace[local]'."
            )
        if not self._model_path.is_file():
            hint = "Install one: headrace models install smollm2."
            raise ConfigError(f"There is no model file at {self._model_path}.", hint=hint)
        with self._model_path.open("rb") as file:
            if file.read(4) != b"GGUF":
                hint = "Install one: headrace models install smollm2."
                raise ConfigError(f"{self._model_path} is not a GGUF file.", hint=hint)

    async def _first_start(self) -> None:
        """Until the first process is ready, or the supervisor has given up on it."""
        assert self._server is not None
        assert self._supervisor is not None
        either: list[asyncio.Future[Any]] = [self._server, self._supervisor]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._supervisor.done():
            self._supervisor.result()

    async def _supervise(self) -> None:
        """One life after another. Raises only when the very first does not begin."""
        backoff = _FIRST_BACKOFF
        while True:
            started = asyncio.get_running_loop().time()
            try:
                code = await self._live()
                _log.error("the embedded engine died (%s); it is restarted", code)
            except EngineError as exc:
                if self.restarts == 0:
                    raise
                _log.error("the embedded engine cannot be restarted: %s (%s)", exc.message, exc.hint)
            lived = asyncio.get_running_loop().time() - started
            backoff = _FIRST_BACKOFF if lived > _HEALTHY else min(backoff * 2, _LAST_BACKOFF)
            self.restarts += 1
            await asyncio.sleep(backoff)

    async def _live(self) -> int:
        """One life of the process, from start to end. Returns its exit code. Raises EngineUnavailable and others."""
        self._process = process = await LlamaCppProcess.start(
            self._model_path,
            alias=self.model,
            threads=self._threads,
            context=self.capabilities.context_tokens or 2048,
            slots=self.capabilities.slots or 1,
            kv=self._kv,
            log=self._log_path,
        )
        try:
            await process.ready()
            async with self._adapter(process) as server:
                await server.warm_up()
                assert self._server is not None
                self._server.set_result(server)
                return await process.wait()
        finally:
            self._server = asyncio.get_running_loop().create_future()
            self._process = None
            await process.stop()

    def _adapter(self, process: LlamaCppProcess) -> OpenAIEngine:
        return OpenAIEngine(
            process.url,
            model=self.model,
            api_key=process.api_key,
            name=self.name,
            capabilities=msgspec.structs.replace(self.capabilities, tools=True),
            keeps_blanks=True,
            timeouts=self._timeouts,
            reuse=False,
        )


class _Slot(msgspec.Struct):
    is_processing: bool


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Cores this process may use: its affinity, and a container's quota where there is one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = cgroup.read_text().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):
        return cores
