"""The embedded engine: llama.cpp in a supervised process of its own, spoken to over its loopback HTTP with a secret.

When the process dies it is started again. Answers in flight then raise EngineDied (or EngineUnavailable, if nothing
had been generated), and requests that come meanwhile wait for it, up to a bound.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from headrace.engine.admission import require_supported, require_texts
from headrace.engine.cores import come_first, model_threads, usable_cores
from headrace.engine.line.engine_line import EngineLine
from headrace.engine.llamacpp.answers import Answers
from headrace.engine.llamacpp.capabilities import of_a_generator, of_an_encoder
from headrace.engine.llamacpp.embeddings import generates, in_parts
from headrace.engine.llamacpp.keeper import Keeper
from headrace.engine.llamacpp.process import LlamaCppProcess
from headrace.engine.llamacpp.server import LlamaCppServer
from headrace.engine.llamacpp.settings import Kv, LlamaCppSettings
from headrace.engine.models import cache_dir
from headrace.engine.port import Chunk, ModelRequest
from headrace.engine.prompts import frame_for, strip_start
from headrace.engine.schema_calls import by_schema, calls_from_json, is_by_schema
from headrace.engine.upstream.port import Timeouts
from headrace.errors import EngineRejected, EngineUnavailable

_GENERATIVE = "Name a model that generates; this one is for `embed`."
_DYING = 1.0  # seconds in which a process that refuses connections is seen to have ended


T = TypeVar("T")

ToolCalls = Literal["none", "native", "schema"]


class LlamaCppEngine:
    """Answers with the GGUF file at `model_path`. Entering it starts the process and waits until it has answered once.

    `slots` answers are generated at once, each with at least `context` tokens; more requests wait in line. `kv` is the
    type of the KV cache. `threads` defaults to `cores.model_threads`. `base` says that the model only continues text,
    so that chats are framed (`prompts.py`). `restart_wait` is how long, in seconds, a request waits for a restart.
    `batch` is how many tokens of all answers and prompts one step computes: by default so few that a long prompt holds
    up nobody; where a step of many tokens takes hardly longer than one of few, as on a GPU, more of them read prompts
    faster.

    With `embeddings` it makes vectors of texts too (`embeddings.py`), at the price of a second, smaller cache and of
    the process' start. A model that cannot generate, such as BERT, does only that, whatever is asked for; what it can
    is known once it is entered.

    `tools` is how the model calls tools: `native` if its chat template knows how, `schema` to hold any model to a
    schema (`schema_calls.py`). `ngram` guesses what comes from what was said before, `draft` is a smaller model of the
    same vocabulary that guesses; neither changes what is said. `snapshot_tokens` is how many tokens lie between two
    saved states of a long answer (`snapshots.py`).

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
        kv: Kv = "q8_0",
        batch: int | None = None,
        embeddings: bool = False,
        base: bool = False,
        tools: ToolCalls = "none",
        ngram: bool = False,
        draft: Path | None = None,
        snapshot_tokens: int | None = None,
        home: Path | None = None,
        linger: float = 60.0,
        restart_wait: float = 15.0,
        timeouts: Timeouts | None = None,
        log: Path | None = None,
    ) -> None:
        self.model = model or model_path.stem
        self._settings = LlamaCppSettings(
            model_path=model_path,
            model=self.model,
            threads=threads or model_threads(usable_cores()),
            context=context,
            slots=slots,
            kv=kv,
            batch=batch,
            embeddings=embeddings,
            ngram=ngram,
            draft=draft,
            snapshot_tokens=snapshot_tokens,
            home=home,
            linger=linger,
        )
        self.capabilities = of_a_generator(self._settings, tools=tools != "none")
        self._generates = True
        self._base, self._tools = base, tools
        self._restart_wait = restart_wait
        self._timeouts = timeouts or Timeouts(first_token=300.0)
        self._log_path = log or cache_dir() / "logs" / "llamacpp.log"
        self._keeper: Keeper | None = None
        self._answers = Answers(self._living, slots=slots)
        self._line = EngineLine(slots)

    @property
    def pid(self) -> int | None:
        """Of the process that is running now."""
        process = self._process
        return process.pid if process is not None else None

    @property
    def restarts(self) -> int:
        """How many processes have ended under this engine."""
        return self._keeper.restarts if self._keeper is not None else 0

    @property
    def restored(self) -> int:
        """How many answers went on from a saved state."""
        return self._answers.restored

    async def __aenter__(self) -> "LlamaCppEngine":
        """Raises ConfigError, EngineUnavailable: what is missing, and how to get it."""
        settings = self._settings
        settings.require_parts()
        come_first()
        header = await asyncio.to_thread(settings.header)
        if not generates(header):
            self._generates = False
            self.capabilities = of_an_encoder(header, settings)
        folder = await asyncio.to_thread(settings.snapshot_folder)
        if folder is not None and settings.snapshot_tokens is not None:
            self._answers.save_states(folder, every=settings.snapshot_tokens)
        self._keeper = Keeper(
            await asyncio.to_thread(settings.parameters, folder),
            home=settings.home,
            log=self._log_path,
            adapter=self._adapter,
            check=settings.require_memory,
        )
        await self._keeper.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._keeper is not None:
            await self._keeper.stop()

    def keep(self) -> None:
        """Leave the process to a successor when this engine is left, and the answers that are not over."""
        self._answers.hand_over()
        if self._keeper is not None:
            self._keeper.keep = True

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[Chunk], None]:
        if not self._generates:
            raise EngineRejected(f"The model {self.model} makes embeddings and cannot generate.", hint=_GENERATIVE)
        require_supported(request, self.capabilities, engine=self.name)
        async with self._line.placed(request, self._answer(request)) as chunks:
            yield chunks

    @asynccontextmanager
    async def _answer(self, asked: ModelRequest) -> AsyncGenerator[AsyncIterator[Chunk], None]:
        request = by_schema(asked) if self._tools == "schema" else asked
        framed = self._base and request.prompt is None and request.continued is None
        async with AsyncExitStack() as stack:
            chunks = await self._answers.begun(self._adapted(request), stack)
            if framed:
                chunks = strip_start(chunks)
            yield calls_from_json(chunks) if is_by_schema(asked, request) else chunks

    async def _living(self, use: Callable[[LlamaCppServer], Awaitable[T]]) -> T:
        """What `use` makes of a server that lives: nobody meets one that is just dying."""
        while True:
            server = await self._server()
            try:
                return await use(server)
            except EngineUnavailable:
                if not await server.process.ends_within(_DYING):
                    raise

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector of length 1 for each text, in order, so that a dot product is a cosine. A text is read whole or
        refused. Many are asked for in parts, so that others get their turn between two of them; after a cancel the
        part that is being read, 16 texts or about 2,000 characters, is still read to its end.

        Raises what `stream` raises: EngineRejected for an empty text, ContextOverflow for one that is too long.
        """
        if not self.capabilities.embeddings:
            raise EngineRejected(f"The model {self.model} makes no embeddings.", hint="Open it with embeddings=True.")
        require_texts(texts)
        vectors: list[list[float]] = []
        for part in in_parts(texts):
            vectors += await self._living(partial(LlamaCppServer.embed, texts=part))
        return vectors

    async def busy_slots(self) -> int:
        """How many answers are being generated, and texts embedded, at this moment."""
        return await self._living(LlamaCppServer.busy_slots)

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

    async def _server(self) -> LlamaCppServer:
        if self._keeper is None:
            raise EngineUnavailable("The embedded engine is not open.", hint="Enter it first: `async with engine:`.")
        return await self._keeper.ready(self._restart_wait)

    def _adapter(self, process: LlamaCppProcess) -> LlamaCppServer:
        return LlamaCppServer(
            process, model=self.model, name=self.name, capabilities=self.capabilities, timeouts=self._timeouts
        )
