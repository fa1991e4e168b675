"""The embedded engine: llama.cpp in a supervised process of its own, spoken to over its loopback HTTP with a secret.

When the process dies it is started again. Answers in flight then raise EngineDied (or EngineUnavailable, if nothing
had been generated), and requests that come meanwhile wait for it, up to a bound.
"""

import importlib.util
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from headrace import __version__
from headrace.engine.admission import require_supported
from headrace.engine.llamacpp_keeper import Keeper
from headrace.engine.llamacpp_parameters import LlamaCppParameters, fingerprint
from headrace.engine.llamacpp_process import LlamaCppProcess
from headrace.engine.models import cache_dir
from headrace.engine.openai import OpenAIEngine
from headrace.engine.port import PARAMETERS, Capabilities, Chunk, ModelRequest
from headrace.engine.presets import LLAMA_SERVER
from headrace.engine.prompts import frame_for, strip_start
from headrace.engine.upstream import Timeouts
from headrace.errors import ConfigError, EngineUnavailable

_DYING = 1.0  # seconds in which a process that refuses connections is seen to have ended


class LlamaCppEngine:
    """Answers with the GGUF file at `model_path`. Entering it starts the process and waits until it has answered once.

    `slots` answers are generated at once, each with `context` tokens; more requests wait in the engine. `kv` is the
    type of the KV cache. `threads` defaults to one less than the cores this process may use, so that the event loop
    keeps one. `base` says that the model only continues text, so that chats are framed (`prompts.py`). `tools` says
    that the model is able to call tools; the small default one is not. `restart_wait` is how long, in seconds, a
    request waits for a restart.

    With `home`, a folder, the process outlives this one: whoever opens an engine with the same parameters and the same
    `home` uses it too, now or within `linger` seconds of the last one's death. Leaving the engine ends the process at
    once if nobody else uses it; after `keep()` it waits for a successor. Without `home` it ends with this process.
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
        home: Path | None = None,
        linger: float = 60.0,
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
        self._model_path = model_path
        self._threads = threads or max(1, usable_cores() - 1)
        self._context, self._slots, self._kv = context, slots, kv
        self._base = base
        self._home, self._linger = home, linger if home is not None else 0.0
        self._restart_wait = restart_wait
        self._timeouts = timeouts or Timeouts(first_token=300.0)
        self._log_path = log or cache_dir() / "logs" / "llamacpp.log"
        self._keeper: Keeper | None = None

    @property
    def pid(self) -> int | None:
        """Of the process that is running now."""
        process = self._process
        return process.pid if process is not None else None

    @property
    def restarts(self) -> int:
        """How many processes have ended under this engine."""
        return self._keeper.restarts if self._keeper is not None else 0

    async def __aenter__(self) -> "LlamaCppEngine":
        """Raises ConfigError, EngineUnavailable: what is missing, and how to get it."""
        self._require_parts()
        self._keeper = Keeper(
            self._parameters(), home=self._home, log=self._log_path, adapter=self._adapter, check=lambda: None
        )
        await self._keeper.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._keeper is not None:
            await self._keeper.stop()

    def keep(self) -> None:
        """Leave the process to a successor when this engine is left."""
        if self._keeper is not None:
            self._keeper.keep = True

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
            server, process = await self._server(), self._process
            answer = await stack.enter_async_context(server.answer(request))
            try:
                await answer.begin()
                return answer
            except EngineUnavailable:
                if process is None or not await process.ends_within(_DYING):
                    raise

    async def busy_slots(self) -> int:
        """How many answers are being generated at this moment."""
        server = await self._server()
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

    @property
    def _process(self) -> LlamaCppProcess | None:
        return self._keeper.process if self._keeper is not None else None

    async def _server(self) -> OpenAIEngine:
        if self._keeper is None:
            raise EngineUnavailable("The embedded engine is not open.", hint="Enter it first: `async with engine:`.")
        return await self._keeper.ready(self._restart_wait)

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

    def _parameters(self) -> LlamaCppParameters:
        return LlamaCppParameters(
            model_path=str(self._model_path.resolve()),
            model_id=fingerprint(self._model_path),
            alias=self.model,
            threads=self._threads,
            context=self._context,
            slots=self._slots,
            kv=self._kv,
            linger=self._linger,
            build=_build(),
        )

    def _adapter(self, process: LlamaCppProcess) -> OpenAIEngine:
        return OpenAIEngine(
            process.url,
            model=self.model,
            api_key=process.api_key,
            name=self.name,
            capabilities=msgspec.structs.replace(self.capabilities, tools=True),
            spelling=LLAMA_SERVER.spelling,
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


def _build() -> str:
    """Our version and the engine's: processes of another are not ours."""
    try:
        return f"{__version__} {version('xllamacpp')}"
    except PackageNotFoundError:
        return __version__
