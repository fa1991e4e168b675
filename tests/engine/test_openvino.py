"""OpenVINO GenAI with the real SmolLM2: it keeps the contract, shares its places, dies and comes back."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from embedded import leave_no_orphan
from fairness import heard_beside
from harness import Home, run_async
from headrace.config import EngineConfig
from headrace.engine import models
from headrace.engine.openvino.engine import OpenVinoEngine
from headrace.engine.port import ModelRequest
from headrace.engines import configured_engine
from headrace.errors import ConfigError, EngineRejected, EngineUnavailable
from headrace.testing.engine_contract import REQUEST, collect, text_of
from stepped import SteppedContract


@pytest.fixture(scope="module")
def weights() -> Path:
    return models.install("smollm2")


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    home = Home()
    yield home
    home.close()


@pytest.fixture(scope="module")
def shared(weights: Path, home: Home) -> Iterator[OpenVinoEngine]:
    pytest.importorskip("openvino_genai")
    engine = OpenVinoEngine(weights, slots=3, context=512, restart_wait=90.0)
    home.run(engine.__aenter__())
    yield engine
    home.run(engine.__aexit__())


@pytest.mark.model
class TestOpenVino(SteppedContract):
    nearly_full = "word " * 480

    @pytest.fixture(autouse=True)
    def _shared(self, shared: OpenVinoEngine, home: Home) -> None:
        self.shared, self.home = shared, home


@pytest.mark.model
def test_what_the_library_will_not_do_is_refused_in_its_words(shared: OpenVinoEngine, home: Home) -> None:
    with pytest.raises(EngineRejected, match="temperature"):
        home.run(collect(shared, msgspec.structs.replace(REQUEST, temperature=-1.0)))
    with pytest.raises(EngineRejected, match="cannot be written as JSON"):
        home.run(collect(shared, ModelRequest(prompt="half \ud83d")))
    with pytest.raises(EngineRejected, match="int"):
        home.run(collect(shared, msgspec.structs.replace(REQUEST, temperature=0.5, top_k=10**30)))
    with pytest.raises(EngineRejected, match="nested"):
        home.run(collect(shared, msgspec.structs.replace(REQUEST, regex="(" * 5000)))
    with pytest.raises(EngineRejected, match="extra"):
        home.run(collect(shared, msgspec.structs.replace(REQUEST, extra={"ignore_eos": True})))
    with pytest.raises(EngineRejected, match="empty"):
        home.run(collect(shared, ModelRequest(prompt="")))
    with pytest.raises(EngineRejected, match="seed"):
        home.run(collect(shared, msgspec.structs.replace(REQUEST, seed=1)))
    assert text_of(home.run(collect(shared)))


@pytest.mark.model
def test_an_answer_goes_on_while_a_long_prompt_is_read(weights: Path) -> None:
    pytest.importorskip("openvino_genai")

    async def scenario() -> None:
        async with OpenVinoEngine(weights, slots=2, context=2048) as engine:
            heard, tokens = await heard_beside(engine, "six seven eight nine ten " * 320)
            at_once = engine.parameters().batch_tokens
        assert tokens >= 1500
        assert heard >= tokens / (2 * at_once)

    run_async(scenario(), deadline=240)


@pytest.mark.model
def test_no_orphan_is_left_when_the_server_is_killed(weights: Path) -> None:
    pytest.importorskip("openvino_genai")
    run_async(leave_no_orphan(OpenVinoEngine, weights, signal.SIGKILL), deadline=120)


# Without a model


async def _enter(engine: OpenVinoEngine) -> None:
    async with engine:
        pass


def test_a_missing_library_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [path for path in sys.path if "site-packages" not in path])
    for name in [name for name in sys.modules if name.startswith("openvino_genai")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigError) as caught:
        run_async(_enter(OpenVinoEngine(tmp_path / "model.gguf")))
    assert "headrace[openvino]" in (caught.value.hint or "")


def test_a_missing_model_says_what_to_install(tmp_path: Path) -> None:
    pytest.importorskip("openvino_genai")
    with pytest.raises(ConfigError) as caught:
        run_async(_enter(OpenVinoEngine(tmp_path / "none.gguf")))
    assert "headrace models install" in (caught.value.hint or "")


def test_what_is_no_model_says_so(tmp_path: Path) -> None:
    pytest.importorskip("openvino_genai")
    (tmp_path / "page.gguf").write_text("<html>not found</html>")
    with pytest.raises(ConfigError, match="not a GGUF file"):
        run_async(_enter(OpenVinoEngine(tmp_path / "page.gguf")))
    with pytest.raises(ConfigError, match=r"openvino_model\.xml"):
        run_async(_enter(OpenVinoEngine(tmp_path)))


def test_a_damaged_model_is_unavailable_and_names_the_log(tmp_path: Path) -> None:
    pytest.importorskip("openvino_genai")
    (tmp_path / "torn.gguf").write_bytes(b"GGUF" + b"\0" * 100)
    engine = OpenVinoEngine(tmp_path / "torn.gguf", log=tmp_path / "log" / "openvino.log")
    with pytest.raises(EngineUnavailable) as caught:
        run_async(_enter(engine))
    assert str(tmp_path / "log") in (caught.value.hint or "")
    assert (tmp_path / "log" / "openvino.log").stat().st_mode & 0o777 == 0o600
    assert engine.pid is None


def test_a_log_that_cannot_be_written_is_unavailable_and_says_where(tmp_path: Path) -> None:
    pytest.importorskip("openvino_genai")
    (tmp_path / "torn.gguf").write_bytes(b"GGUF" + b"\0" * 100)
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(EngineUnavailable, match="cannot be started"):
        run_async(_enter(OpenVinoEngine(tmp_path / "torn.gguf", log=tmp_path / "file" / "openvino.log")))


@pytest.mark.model
def test_the_configuration_chooses_it_and_its_settings(weights: Path, tmp_path: Path) -> None:
    chosen = configured_engine(EngineConfig(embedded="openvino", slots=7, context_tokens=99))
    assert isinstance(chosen, OpenVinoEngine)
    assert (chosen.model, chosen.capabilities.slots, chosen.capabilities.context_tokens) == ("smollm2", 7, 99)
    own = configured_engine(EngineConfig(embedded="openvino", model=str(tmp_path / "own.gguf")))
    assert (type(own), own.model) == (OpenVinoEngine, "own")
    assert not isinstance(configured_engine(EngineConfig()), OpenVinoEngine)


def test_a_model_or_a_cache_that_it_has_not_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="q4_0"):
        configured_engine(EngineConfig(embedded="openvino", model=str(tmp_path / "own.gguf"), kv="q4_0"))
    if models.installed("gemma") is not None:
        with pytest.raises(ConfigError, match="Gemma"):
            configured_engine(EngineConfig(embedded="openvino", model="gemma"))


def test_an_engine_that_is_not_open_says_so(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="not open"):
        run_async(collect(OpenVinoEngine(tmp_path / "none.gguf")))
