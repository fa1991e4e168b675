"""These tests run in vLLM's own environment (`scripts/vllm`), and nowhere else are they seen."""

import gc
import importlib.util
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tiny_model import learning_text, make_tiny_model
from vllm_server import VllmServer, vllm_server

collect_ignore_glob = [] if importlib.util.find_spec("vllm") else ["test_*.py"]


@pytest.fixture(scope="module", autouse=True)
def _what_vllm_never_closes() -> Iterator[None]:
    """Such as the socket contexts of an engine that died: it goes between two modules, where that is no error, and not
    in the middle of some later test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny", text=learning_text())


@pytest.fixture(scope="module")
def server(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    with vllm_server(tiny, tmp_path_factory.mktemp("vllm") / "log") as running:
        yield running
