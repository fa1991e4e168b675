"""What is known about transformers' engine before its process starts: whether everything is there, and fits."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from harness import run_async
from headrace.config import EngineConfig, load
from headrace.engine.transformers import parts
from headrace.engine.transformers.engine import TransformersEngine
from headrace.engine.transformers.parts import has_chat_template, need, require_libraries, require_model
from headrace.engines import configured_engine
from headrace.errors import ConfigError
from tiny_model import learning_text, make_tiny_model

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny", text=learning_text())


@pytest.fixture
def copy(tiny: Path, tmp_path: Path) -> Path:
    """Of the model, to be spoilt."""
    folder = tmp_path / "copy"
    folder.mkdir()
    for file in tiny.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def refused(path: Path, **more: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        require_model(path, **{"weights": "full", "context": 512, **more})
    return caught.value


def test_a_whole_model_is_not_refused(tiny: Path) -> None:
    require_model(tiny, weights="nf4", context=2048)


@pytest.mark.parametrize(
    ("missing", "named"),
    [("config.json", r"config\.json"), ("tokenizer.json", "tokenizer"), ("model.safetensors", "safetensors")],
)
def test_each_missing_part_of_a_model_is_named(copy: Path, missing: str, named: str) -> None:
    (copy / missing).unlink()
    (copy / "pytorch_model.bin").touch()
    error = refused(copy)
    assert error.message.count("there is no") == 1
    with pytest.raises(ConfigError, match=named):
        raise error


def test_what_is_no_model_is_refused_with_what_would_be_one(tmp_path: Path) -> None:
    assert "GGUF" in (refused(tmp_path / "none").hint or "")
    (tmp_path / "page.gguf").write_text("<html>not found</html>")
    assert "not a GGUF file" in refused(tmp_path / "page.gguf").message


def test_a_config_that_is_damaged_or_of_something_else_is_refused(copy: Path) -> None:
    (copy / "config.json").write_text("{}")
    assert "model_type" in refused(copy).message
    (copy / "config.json").write_text("{")
    assert "no JSON" in refused(copy).message


def test_more_context_than_the_model_knows_is_refused_with_the_most_there_is(tiny: Path) -> None:
    assert "2048" in (refused(tiny, context=2049).hint or "")


def test_a_gguf_file_is_not_quantised_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "read_header", lambda path: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    (tmp_path / "a.gguf").touch()
    assert "engine.weights" in (refused(tmp_path / "a.gguf", weights="nf4").hint or "")


def test_a_missing_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"torch", "transformers", "xgrammar", "accelerate"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in there else None)
    require_libraries("full")
    with pytest.raises(ConfigError, match="bitsandbytes") as caught:
        require_libraries("nf4")
    assert "headrace[transformers]" in (caught.value.hint or "")
    with pytest.raises(ConfigError, match="torchao"):
        require_libraries("int8")


def test_what_it_takes_is_known_from_the_headers(tiny: Path) -> None:
    numbers = (tiny / "model.safetensors").stat().st_size / 4
    full = need(tiny, weights="full", kv="full", context=1000, slots=2)
    assert full.weights == pytest.approx(4 * numbers, rel=0.01)
    assert full.cache == 2 * 4 * (2 * 64) * 4 * 1000 * 2  # keys and values, layers, heads, bytes, tokens, slots
    small = need(tiny, weights="nf4", kv="int8", context=1000, slots=2)
    assert small.weights < full.weights / 4
    assert small.cache < full.cache / 3


def test_a_model_that_does_not_fit_is_refused_with_the_numbers(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.engine.transformers.engine.require_libraries", lambda weights: None)
    engine = TransformersEngine(tiny, context=2048, slots=1_000_000)
    with pytest.raises(ConfigError, match="MiB") as caught:
        run_async(engine.__aenter__())
    assert "engine.kv=q8_0" in (caught.value.hint or "")
    assert engine.pid is None


@pytest.mark.parametrize("damage", [b"", b"\xff" * 64, (9).to_bytes(8, "little") + b"{broken}}"])
def test_damaged_weights_are_refused_by_name(copy: Path, damage: bytes) -> None:
    (copy / "model.safetensors").write_bytes(damage)
    with pytest.raises(ConfigError, match=r"model\.safetensors is damaged"):
        need(copy, weights="full", kv="full", context=512, slots=1)


def test_a_base_model_is_known_by_what_it_has_not(copy: Path) -> None:
    assert has_chat_template(copy)
    settings = json.loads((copy / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (copy / "tokenizer_config.json").write_text(json.dumps(settings))
    assert not has_chat_template(copy)
    (copy / "chat_template.jinja").write_text("{{ messages }}")
    assert has_chat_template(copy)


# As it is configured


def test_the_configuration_in_the_documentation_is_this_engine(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
    section = page.split("## Transformers for weights alone")[1].split("\n## ")[0]
    file = tmp_path / "headrace.toml"
    file.write_text(section.split("```toml")[1].split("```")[0])
    engine = configured_engine(load(file=file).config.engine)
    assert isinstance(engine, TransformersEngine)
    assert engine.model == "Qwen3-0.6B"
    told = engine.parameters()
    assert (told.weights, told.kv, told.slots, told.context) == ("nf4", "full", 4, 2048)
    assert told.together


def test_every_setting_reaches_the_process() -> None:
    settings = EngineConfig(
        embedded="transformers",
        model="/m/odel",
        weights="int8",
        kv="q8_0",
        slots=3,
        context_tokens=99,
        threads=5,
        snapshot_tokens=64,
    )
    engine = configured_engine(settings)
    assert isinstance(engine, TransformersEngine)
    told = engine.parameters()
    assert (told.model_path, told.weights, told.kv, told.snapshot_tokens) == ("/m/odel", "int8", "int8", 64)
    assert (told.slots, told.context, told.threads) == (3, 99, 5)
    assert not told.together


def test_what_another_engine_has_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="f16") as caught:
        configured_engine(EngineConfig(embedded="transformers", model="/m/odel", kv="f16"))
    assert "q8_0" in (caught.value.hint or "")
    with pytest.raises(ConfigError, match="nf4"):
        configured_engine(EngineConfig(weights="nf4"))
    with pytest.raises(ConfigError, match="f32"):
        configured_engine(EngineConfig(model="m.gguf", kv="f32"))
