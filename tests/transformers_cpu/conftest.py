"""These tests run in transformers' own environment (`scripts/transformers`), and nowhere else are they seen."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import Home
from tiny_model import learning_text, make_tiny_model

collect_ignore_glob = [] if importlib.util.find_spec("transformers") else ["test_*.py"]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny", text=learning_text())


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    home = Home()
    yield home
    home.close()
