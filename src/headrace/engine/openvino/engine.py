"""The embedded engine for many streams on a CPU: OpenVINO GenAI in a supervised child process.

Paged attention, a cache of 8 bits, and prompts that are read in small parts between the others' tokens: four times the
tokens of llama.cpp at 32 streams, but fewer for a single one. This side knows requests and answers; the batch is in the
child (`batch.py`), and between them go lines of JSON (`lines.py`).

When the process dies it is started again. Answers in flight then raise EngineDied (or EngineUnavailable, if nothing had
been generated), and requests that come meanwhile wait for it, up to a bound.
"""

import importlib.util
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from headrace.engine.admission import require_supported
from headrace.engine.child import ChildProcess, Lives
from headrace.engine.llamacpp.settings import usable_cores
from headrace.engine.models import cache_dir
from headrace.engine.openvino.answer import Answer
from headrace.engine.openvino.lines import OpenVinoParameters, Seen
from headrace.engine.openvino.process import OpenVinoProcess
from headrace.engine.port import Capabilities, Chunk, ModelRequest, Parameter
from headrace.engine.upstream import Timeouts
from headrace.errors import ConfigError, EngineRejected

SAMPLING: frozenset[Parameter] = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "stop",
    }
)
"""No seed: the answers of a batch share one source of randomness, so a seed would promise what it cannot keep."""

_MODULE = "headrace.engine.openvino.child"
_PROMPT_TOKENS = 48  # of waiting prompts, that a step may read beside one token for every answer


class OpenVinoEngine:
    """Answers with the model at `model_path`: a GGUF file of a family that OpenVINO reads (Llama, Qwen), or a folder in
    OpenVINO's own format. Entering it starts the process and waits until it has answered once, which takes seconds.

    `slots` answers are generated at once, each with `context` tokens; more requests wait in line. `kv` is the type of
    the cache (`u8`, `f16`, `f32`). `threads` defaults to one less than the cores this process may use, so that the
    event loop keeps one. `restart_wait` is how long, in seconds, a request waits for a restart.
    """

    name = "openvino"

    def __init__(
        self,
        model_path: Path,
        *,
        model: str | None = None,
        threads: int | None = None,
        context: int = 2048,
        slots: int = 16,
        kv: str = "u8",
        restart_wait: float = 30.0,
        timeouts: Timeouts | None = None,
        log: Path | None = None,
    ) -> None:
        self.model = model or model_path.stem
        self.capabilities = Capabilities(
            sampling=SAMPLING,
            grammar=True,
            regex=True,
            json_schema=True,
            thinking=True,
            raw_prompt=True,
            continuation=True,
            context_tokens=context,
            slots=slots,
        )
        self._threads = threads or max(1, usable_cores() - 1)
        self._context = context
        self._slots = slots
        self._kv = kv
        self._model_path = model_path
        self._restart_wait = restart_wait
        self._timeouts = timeouts or Timeouts(first_token=300.0)
        self._log_path = log or cache_dir() / "logs" / "openvino.log"
        self._lives = Lives(self._live, name=self.name)
        self._child: ChildProcess | None = None

    @property
    def pid(self) -> int | None:
        """Of the process that is running now."""
        return self._child.pid if self._child is not None else None

    @property
    def restarts(self) -> int:
        return self._lives.restarts

    async def __aenter__(self) -> "OpenVinoEngine":
        """Raises ConfigError, EngineUnavailable: what is missing, and how to get it."""
        _require_parts(self._model_path)
        await self._lives.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._lives.__aexit__(*exc)

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[Chunk], None]:
        require_supported(request, self.capabilities, engine=self.name)
        if request.extra:
            raise EngineRejected(f"The engine {self.name} knows nothing of `extra`.", hint="Leave it out.")
        answer = Answer(timeouts=self._timeouts, continued=request.continued is not None)
        process = await self._lives.now(wait=self._restart_wait)
        with process.answering(request, answer):
            yield answer

    async def occupancy(self) -> Seen:
        """How many answers are being generated at this moment, and how many requests wait."""
        process = await self._lives.now(wait=self._restart_wait)
        return await process.look()

    async def _live(self, born: Callable[[OpenVinoProcess], None]) -> int:
        """One life of the process, from start to end."""
        self._child = child = await ChildProcess.start(_MODULE, log=self._log_path)
        process = OpenVinoProcess(child)
        try:
            child.send(self.parameters())
            await process.ready(self._log_path)
            born(process)
            await process.listen()
            return await child.wait()
        finally:
            self._child = None
            process.end()
            await child.stop()

    def parameters(self) -> OpenVinoParameters:
        """What the process is told."""
        return OpenVinoParameters(
            model_path=str(self._model_path),
            threads=self._threads,
            context=self._context,
            slots=self._slots,
            batch_tokens=self._slots + _PROMPT_TOKENS,
            kv=self._kv,
            parent=os.getpid(),
        )


def _require_parts(model_path: Path) -> None:
    if importlib.util.find_spec("openvino_genai") is None:
        raise ConfigError(
            "OpenVINO GenAI is not installed.",
            hint="Install it: pip install 'headrace[openvino]'. Where pip finds none for this machine, take the other "
            "embedded engine (headrace[local]) or a model server (--engine-url).",
        )
    if not model_path.exists():
        hint = "Install one (headrace models install smollm2), or give the path of a GGUF file or an OpenVINO folder."
        raise ConfigError(f"There is no model at {model_path}.", hint=hint)
    if model_path.is_file() and not _is_gguf(model_path):
        raise ConfigError(f"{model_path} is not a GGUF file.", hint="An OpenVINO model is given as its folder.")
    if model_path.is_dir() and not (model_path / "openvino_model.xml").is_file():
        raise ConfigError(f"{model_path} has no openvino_model.xml in it.", hint="Export it with optimum-cli.")


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"
