"""OpenVINO GenAI with the real SmolLM2: it keeps the contract, shares its places, dies and comes back."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from embedded import kill_in_the_middle, leave_no_orphan
from harness import Home, run_async
from headrace.config import EngineConfig
from headrace.engine import models
from headrace.engine.openvino.engine import OpenVinoEngine
from headrace.engine.port import Chunk, Engine, Finish, ModelRequest, Queued, Text
from headrace.engine.stepped.lines import Seen
from headrace.engines import configured_engine
from headrace.errors import ConfigError, ContextOverflow, EngineRejected, EngineUnavailable
from headrace.messages import Message
from headrace.testing.engine_contract import LONG, REQUEST, EngineContract, collect, text_of

ASK = (Message(role="user", content="Answer."),)
ENDLESS = ModelRequest(prompt="One two three", grammar='root ::= (" " [a-z]+)+', max_tokens=400)
"""An answer that never ends by itself."""
STORY = ModelRequest(messages=LONG.messages, max_tokens=40, temperature=0.0)


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


async def occupied(engine: OpenVinoEngine, seen: Seen) -> None:
    while await engine.occupancy() != seen:  # noqa: ASYNC110 - the process can only be asked
        await asyncio.sleep(0.01)


async def is_idle(engine: OpenVinoEngine) -> None:
    await occupied(engine, Seen(0, 0))


async def read_to_the_end(chunks: AsyncIterator[Chunk]) -> list[Chunk]:
    return [chunk async for chunk in chunks]


@pytest.mark.model
class TestOpenVino(EngineContract):
    @pytest.fixture(autouse=True)
    def _shared(self, shared: OpenVinoEngine, home: Home) -> None:
        self.shared, self.home = shared, home

    def run(self, test: Coroutine[Any, Any, None]) -> None:
        self.home.run(test)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Engine]:
        yield self.shared
        await is_idle(self.shared)

    async def idle(self, engine: Engine) -> None:
        await is_idle(self.shared)


@pytest.mark.model
def test_a_grammar_a_regex_and_a_schema_shape_the_answer(shared: OpenVinoEngine, home: Home) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 7}}, "required": ["a"], "additionalProperties": False}
    grammar = 'root ::= "foo bar " ("帮" | "día" | "😀")'
    answers = [
        text_of(home.run(collect(shared, request)))
        for request in (
            ModelRequest(messages=ASK, grammar=grammar, max_tokens=30),
            ModelRequest(prompt="Once", grammar=grammar, max_tokens=30),
            ModelRequest(messages=ASK, regex=r"\d{3}-[ab]", max_tokens=30),
            ModelRequest(messages=ASK, json_schema=schema, max_tokens=200, temperature=0.0),
            ModelRequest(messages=ASK, json_schema={"enum": ["ñandú", "ÿ9"]}, max_tokens=20),
        )
    ]
    assert all(answer in ("foo bar 帮", "foo bar día", "foo bar 😀") for answer in answers[:2])
    assert answers[2][:3].isdecimal()
    assert answers[2][3:] in ("-a", "-b")
    assert json.loads(answers[3]) == {"a": 7}
    assert json.loads(answers[4]) in ("ñandú", "ÿ9")


@pytest.mark.model
@pytest.mark.parametrize(
    "shape",
    [
        {"grammar": "root ::= nowhere"},
        {"grammar": 'root ::= root "a"'},
        {"regex": "("},
        {"json_schema": {"type": 5}},
        {"json_schema": {"type": "string", "pattern": "("}},
    ],
    ids=str,
)
def test_a_shape_that_cannot_be_compiled_is_refused_and_no_other_answer_notices(
    shared: OpenVinoEngine, home: Home, shape: dict[str, Any]
) -> None:
    """In the library it fails the step of all, and every step after it."""

    async def scenario() -> None:
        async with shared.stream(STORY) as chunks:
            first = await anext(chunks)
            with pytest.raises(EngineRejected):
                await collect(shared, ModelRequest(messages=ASK, **shape))
            rest = await read_to_the_end(chunks)
        assert isinstance(rest[-1], Finish)
        assert len(text_of([first, *rest])) > len(text_of([first]))
        assert shared.restarts == 0

    home.run(scenario())


@pytest.mark.model
@pytest.mark.parametrize("stop", ["beta gamma", "ta ga", "lta", "a b"])
def test_a_stop_string_is_not_part_of_the_answer_wherever_it_lies(
    shared: OpenVinoEngine, home: Home, stop: str
) -> None:
    said = "alpha beta gamma delta"
    request = ModelRequest(messages=ASK, grammar=f'root ::= "{said}"', stop=(stop, "never"), max_tokens=40)
    chunks = home.run(collect(shared, request))
    assert text_of(chunks) == said[: said.index(stop)]
    assert isinstance(chunks[-1], Finish)
    assert chunks[-1].reason == "stop"


@pytest.mark.model
def test_characters_of_many_tokens_come_whole(shared: OpenVinoEngine, home: Home) -> None:
    said = "👩‍👩‍👧‍👦 你好，世界 é 🇩🇪 ñandú"
    chunks = home.run(collect(shared, ModelRequest(messages=ASK, grammar=f'root ::= "{said}"', max_tokens=120)))
    assert text_of(chunks) == said
    pieces = [chunk.text for chunk in chunks if isinstance(chunk, Text)]
    assert len(pieces) > 8
    assert all("\ufffd" not in piece for piece in pieces)


@pytest.mark.model
def test_more_requests_than_places_wait_in_line_and_say_so(shared: OpenVinoEngine, home: Home) -> None:
    async def scenario() -> None:
        endless = [asyncio.create_task(collect(shared, ENDLESS)) for _ in range(3)]
        await occupied(shared, Seen(3, 0))
        async with shared.stream(REQUEST) as chunks:
            assert await anext(chunks) == Queued(1)
            for task in endless:
                task.cancel()
            rest = await read_to_the_end(chunks)
        assert rest[0] == Queued(0)
        assert isinstance(rest[-1], Finish)
        assert rest[-1].timing.queued_ms > 0
        await asyncio.wait(endless)

    home.run(scenario())


@pytest.mark.model
def test_who_leaves_the_line_is_never_answered(shared: OpenVinoEngine, home: Home) -> None:
    async def scenario() -> None:
        endless = [asyncio.create_task(collect(shared, ENDLESS)) for _ in range(3)]
        await occupied(shared, Seen(3, 0))
        async with shared.stream(LONG) as chunks:
            assert await anext(chunks) == Queued(1)
        await occupied(shared, Seen(3, 0))
        for task in endless:
            task.cancel()
        await asyncio.wait(endless)
        await is_idle(shared)

    home.run(scenario())


@pytest.mark.model
def test_leaving_while_a_long_prompt_is_read_frees_the_place(shared: OpenVinoEngine, home: Home) -> None:
    async def scenario() -> None:
        request = ModelRequest(prompt=" ".join(str(number) for number in range(150)), max_tokens=4)
        async with shared.stream(request) as chunks:
            reader = asyncio.ensure_future(read_to_the_end(chunks))
            await occupied(shared, Seen(1, 0))
            reader.cancel()
            await asyncio.wait([reader])
        await is_idle(shared)

    home.run(scenario())


@pytest.mark.model
def test_a_prompt_that_does_not_fit_is_a_context_overflow(shared: OpenVinoEngine, home: Home) -> None:
    with pytest.raises(ContextOverflow, match="512"):
        home.run(collect(shared, ModelRequest(prompt="word " * 2000)))


@pytest.mark.model
def test_a_full_context_ends_with_length_instead_of_hanging(shared: OpenVinoEngine, home: Home) -> None:
    request = msgspec.structs.replace(ENDLESS, prompt="word " * 480, max_tokens=1000)
    finish = home.run(collect(shared, request))[-1]
    assert isinstance(finish, Finish)
    assert finish.reason == "length"
    assert finish.usage.input_tokens + finish.usage.output_tokens == 512


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
def test_a_penalty_and_a_temperature_change_what_is_said(shared: OpenVinoEngine, home: Home) -> None:
    banana = ModelRequest(prompt="BANANA " * 20, max_tokens=16, temperature=0.0)
    plain = text_of(home.run(collect(shared, banana)))
    punished = msgspec.structs.replace(banana, presence_penalty=2.0, repetition_penalty=1.5)
    assert text_of(home.run(collect(shared, punished))) != plain
    warm = msgspec.structs.replace(banana, temperature=2.0, top_p=0.99)
    assert {text_of(home.run(collect(shared, warm))) for _ in range(3)} != {plain}


@pytest.mark.model
def test_the_loop_goes_on_turning_while_the_engine_works(shared: OpenVinoEngine, home: Home) -> None:
    async def scenario() -> None:
        reader = asyncio.ensure_future(collect(shared, ModelRequest(prompt="Once upon", max_tokens=24)))
        ticks = 0
        while not reader.done():
            ticks += 1
            await asyncio.sleep(0.005)
        assert ticks > len(reader.result())

    home.run(scenario())


@pytest.mark.model
def test_nothing_that_was_asked_stands_on_the_command_line(shared: OpenVinoEngine) -> None:
    assert shared.pid is not None
    assert os.getsid(shared.pid) == shared.pid
    if sys.platform == "linux":
        assert b"gguf" not in Path(f"/proc/{shared.pid}/cmdline").read_bytes()


@pytest.mark.model
def test_a_killed_engine_breaks_its_streams_and_comes_back(shared: OpenVinoEngine, home: Home) -> None:
    home.run(kill_in_the_middle(shared, ENDLESS))


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
