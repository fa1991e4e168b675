"""The embedded engine for many streams on a CPU: OpenVINO GenAI in a supervised child process.

Paged attention, a cache of 8 bits, and prompts that are read in small parts beside the others' tokens: three times the
tokens of llama.cpp at 16 streams of SmolLM2, but no more for a single one.
"""

import importlib.util
import os
from pathlib import Path

from headrace.engine.openvino.parameters import OpenVinoParameters
from headrace.engine.port import Parameter
from headrace.engine.stepped.engine import SteppedEngine
from headrace.engine.upstream.port import Timeouts
from headrace.errors import ConfigError

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

_PROMPT_TOKENS = 48  # of waiting prompts, that a step may read beside one token for every answer


class OpenVinoEngine(SteppedEngine):
    """Answers with the model at `model_path`: a GGUF file of a family that OpenVINO reads (Llama, Qwen), or a folder in
    OpenVINO's own format. `kv` is the type of the cache (`u8`, `f16`, `f32`).
    """

    name = "openvino"
    library = "OpenVINO"
    child = "headrace.engine.openvino.child"
    reads = "It reads GGUF files of the Llama and Qwen families only."

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
        super().__init__(
            model_path,
            sampling=SAMPLING,
            model=model,
            threads=threads,
            context=context,
            slots=slots,
            restart_wait=restart_wait,
            timeouts=timeouts,
            log=log,
        )
        self._kv = kv

    def require_parts(self) -> None:
        _require_parts(self._model_path)

    def parameters(self) -> OpenVinoParameters:
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
