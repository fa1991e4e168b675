"""These tests run in vLLM's own environment (`scripts/vllm`), and nowhere else are they seen."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tiny_model import learning_text, make_tiny_model
from vllm_server import VllmServer, vllm_server

collect_ignore_glob = [] if importlib.util.find_spec("vllm") else ["test_*.py"]


def pytest_configure(config: pytest.Config) -> None:
    # An engine that dies in the process leaves one behind, and vLLM never closes it.
    config.addinivalue_line("filterwarnings", "ignore:Unclosed context:ResourceWarning")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny", text=learning_text())


@pytest.fixture(scope="module")
def server(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    with vllm_server(tiny, tmp_path_factory.mktemp("vllm") / "log") as running:
        yield running
