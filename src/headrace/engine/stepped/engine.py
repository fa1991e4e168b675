"""The server's side of an engine whose library computes a step at a time: requests in, answers out.

The library holds the interpreter while it computes, so it runs in a process of its own (`child.py`), with the batch
(`batch.py`); between the two go lines of JSON (`lines.py`).

When the process dies it is started again. Answers in flight then raise EngineDied (or EngineUnavailable, if nothing had
been generated), and requests that come meanwhile wait for it, up to a bound.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar, TypeVar

from headrace.engine.admission import require_supported
from headrace.engine.child import ChildProcess, Lives
from headrace.engine.cores import come_first, model_threads, usable_cores
from headrace.engine.line.engine_line import EngineLine
from headrace.engine.models import cache_dir
from headrace.engine.port import Capabilities, Chunk, ModelRequest, Parameter
from headrace.engine.stepped.answer import Answer
from headrace.engine.stepped.lines import Parameters, Seen
from headrace.engine.stepped.process import SteppedProcess
from headrace.engine.upstream.port import Timeouts
from headrace.errors import EngineRejected

Self = TypeVar("Self", bound="SteppedEngine")


class SteppedEngine(ABC):
    """Entering it starts the process and waits until it has answered once, which takes seconds.

    `name` is the engine's and `library` what its users call the library; `child` is the module that runs in the
    process, and `reads` says which models it can read.

    `slots` answers are generated at once, each with `context` tokens; more requests wait in line. `threads` defaults to
    `cores.model_threads`. `restart_wait` is how long, in seconds, a request waits for a restart.
    """

    name: ClassVar[str]
    library: ClassVar[str]
    child: ClassVar[str]
    reads: ClassVar[str]

    def __init__(
        self,
        model_path: Path,
        *,
        sampling: frozenset[Parameter],
        model: str | None,
        threads: int | None,
        context: int,
        slots: int,
        restart_wait: float,
        timeouts: Timeouts | None,
        log: Path | None,
    ) -> None:
        self.model = model or (model_path.stem if model_path.suffix == ".gguf" else model_path.name)
        self.capabilities = Capabilities(
            sampling=sampling,
            grammar=True,
            regex=True,
            json_schema=True,
            thinking=True,
            raw_prompt=True,
            continuation=True,
            context_tokens=context,
            slots=slots,
        )
        self._model_path = model_path
        self._threads = threads or model_threads(usable_cores())
        self._context = context
        self._slots = slots
        self._restart_wait = restart_wait
        self._timeouts = timeouts or Timeouts(first_token=300.0)
        self._log_path = log or cache_dir() / "logs" / f"{self.name}.log"
        self._line = EngineLine(slots)
        self._lives = Lives(self._live, name=self.name)
        self._child: ChildProcess | None = None

    @abstractmethod
    def require_parts(self) -> None:
        """Raises ConfigError: what is missing, and how to get it."""

    @abstractmethod
    def parameters(self) -> Parameters:
        """What the process is told."""

    @property
    def pid(self) -> int | None:
        """Of the process that is running now."""
        return self._child.pid if self._child is not None else None

    @property
    def restarts(self) -> int:
        return self._lives.restarts

    async def __aenter__(self: Self) -> Self:
        """Raises ConfigError, EngineUnavailable."""
        self.require_parts()
        come_first()
        await self._lives.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._lives.__aexit__(*exc)

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[Chunk], None]:
        require_supported(request, self.capabilities, engine=self.name)
        if request.extra:
            raise EngineRejected(f"The engine {self.name} knows nothing of `extra`.", hint="Leave it out.")
        async with self._line.placed(request, self._answer(request)) as chunks:
            yield chunks

    @asynccontextmanager
    async def _answer(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[Chunk], None]:
        continued = request.continued is not None
        answer = Answer(library=self.library, timeouts=self._timeouts, continued=continued)
        process = await self._lives.now(wait=self._restart_wait)
        with process.answering(request, answer):
            yield answer

    async def occupancy(self) -> Seen:
        """How many answers are being generated at this moment, and how many requests wait."""
        process = await self._lives.now(wait=self._restart_wait)
        return await process.look()

    async def _live(self, born: Callable[[SteppedProcess], None]) -> int:
        """One life of the process, from start to end."""
        self._child = child = await ChildProcess.start(self.child, log=self._log_path)
        process = SteppedProcess(child, library=self.library)
        try:
            child.send(self.parameters())
            await process.ready(self._log_path, reads=self.reads)
            born(process)
            await process.listen()
            return await child.wait()
        finally:
            self._child = None
            process.end()
            await child.stop()
