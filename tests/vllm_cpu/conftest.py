"""These tests run in vLLM's own environment (`scripts/vllm`), and nowhere else are they seen."""

import gc
import importlib.util
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tiny_model import learning_text, make_tiny_adapter, make_tiny_model
from vllm_server import VllmServer, vllm_server

collect_ignore_glob = [] if importlib.util.find_spec("vllm") else ["test_*.py"]


def pytest_configure(config: pytest.Config) -> None:
    """What vLLM never closes, such as the sockets of an engine that died, goes in the middle of some later test."""
    config.addinivalue_line("filterwarnings", "ignore:Unclosed (context|socket) <zmq:ResourceWarning")


def pytest_sessionfinish() -> None:
    """Or after the last one, where pytest asks no filter of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny", text=learning_text())


@pytest.fixture(scope="session")
def pirate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA adapter of it."""
    return make_tiny_adapter(tmp_path_factory.mktemp("adapter") / "pirate")


@pytest.fixture(scope="module")
def server(tiny: Path, pirate: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    with vllm_server(
        tiny, tmp_path_factory.mktemp("vllm") / "log", "--enable-lora", "--lora-modules", f"pirate={pirate}"
    ) as running:
        yield running
