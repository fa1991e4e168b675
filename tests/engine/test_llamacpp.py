"""The embedded engine with the real SmolLM2: it keeps the contract, dies and comes back, and leaves no orphan."""

import asyncio
import json
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from embedded import kill_in_the_middle, leave_no_orphan
from harness import Home, run_async
from headrace.engine import models
from headrace.engine.llamacpp.engine import LlamaCppEngine
from headrace.engine.llamacpp.settings import Kv
from headrace.engine.openai.engine import OpenAIEngine
from headrace.engine.port import Engine, Finish, ModelRequest, Text
from headrace.engine.presets import LLAMA_SERVER
from headrace.errors import ConfigError, ContextOverflow, EngineUnavailable
from headrace.messages import Message
from headrace.testing.engine_contract import LONG, REQUEST, EngineContract, collect, text_of


@pytest.fixture(scope="session")
def weights() -> Path:
    return models.install("smollm2")


@pytest.fixture(scope="session")
def home() -> Iterator[Home]:
    home = Home()
    yield home
    home.close()


@pytest.fixture(scope="session")
def shared(weights: Path, home: Home) -> Iterator[LlamaCppEngine]:
    engine = LlamaCppEngine(weights, slots=2, context=512, embeddings=True)
    home.run(engine.__aenter__())
    yield engine
    home.run(engine.__aexit__())


async def slots_are(engine: LlamaCppEngine, *, busy: bool) -> None:
    while bool(await engine.busy_slots()) != busy:  # noqa: ASYNC110 - the server can only be asked
        await asyncio.sleep(0.01)


async def is_idle(engine: LlamaCppEngine) -> None:
    await slots_are(engine, busy=False)


@pytest.mark.model
class TestLlamaCpp(EngineContract):
    @pytest.fixture(autouse=True)
    def _shared(self, shared: LlamaCppEngine, home: Home) -> None:
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
class TestLlamaCppAsAServer(EngineContract):
    """The same process through the engine for any compatible server, as whoever runs `llama-server` has it."""

    embeds = False  # the process makes them at another address

    @pytest.fixture(autouse=True)
    def _shared(self, shared: LlamaCppEngine) -> None:
        self.shared = shared

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Engine]:
        process = self.shared._process
        assert process is not None
        async with OpenAIEngine(process.url, model="m", api_key=process.api_key, capabilities=None) as engine:
            recognised = msgspec.structs.replace(LLAMA_SERVER.capabilities, slots=2, context_tokens=512)
            assert engine.capabilities == recognised
            yield engine

    async def idle(self, engine: Engine) -> None:
        assert isinstance(engine, OpenAIEngine)
        async with asyncio.timeout(20):
            while b'"is_processing":true' in await engine.get("/slots"):  # noqa: ASYNC110 - it can only be asked
                await asyncio.sleep(0.01)


def resident_mib(pid: int | None) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]) // 1024


@pytest.mark.model
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a process holds")
def test_a_cache_of_8_bits_takes_little_more_than_half_the_memory(weights: Path) -> None:
    """23 kB a token and 12: of 8,192 tokens 180 MiB and 96, all of it written to when it is made."""

    async def held(kv: Kv) -> int:
        async with LlamaCppEngine(weights, slots=4, context=2048, kv=kv) as engine:
            return resident_mib(engine.pid)

    full, small = (run_async(held(kv), deadline=120) for kv in ("f16", "q8_0"))
    assert 70 <= full - small <= 100


@pytest.mark.model
def test_leaving_while_a_long_prompt_is_read_frees_the_slot(shared: LlamaCppEngine, home: Home) -> None:
    async def scenario() -> None:
        long_prompt = ModelRequest(messages=(Message(role="user", content="word " * 450),), max_tokens=4)
        async with shared.stream(long_prompt) as chunks:
            reader = asyncio.ensure_future(collect_rest(chunks))
            await slots_are(shared, busy=True)
            reader.cancel()
            await asyncio.wait([reader])
        await is_idle(shared)

    home.run(scenario())


async def collect_rest(chunks: AsyncIterator[object]) -> list[object]:
    return [chunk async for chunk in chunks]


@pytest.mark.model
def test_a_grammar_a_schema_and_a_raw_prompt_shape_the_answer(shared: LlamaCppEngine, home: Home) -> None:
    ask = (Message(role="user", content="Answer."),)
    schema = {"type": "object", "properties": {"a": {"const": 7}}, "required": ["a"], "additionalProperties": False}
    grammar = 'root ::= "foo bar " ("帮" | "día")'
    answers = [
        text_of(home.run(collect(shared, request)))
        for request in (
            ModelRequest(messages=ask, grammar=grammar, max_tokens=30),
            ModelRequest(prompt="Once", grammar=grammar, max_tokens=30),
            ModelRequest(messages=ask, json_schema=schema, max_tokens=60, temperature=0.0),
            ModelRequest(prompt="The JSON: ", json_schema=schema, max_tokens=60, temperature=0.0),
        )
    ]
    assert all(answer in ("foo bar 帮", "foo bar día") for answer in answers[:2])
    assert [json.loads(answer) for answer in answers[2:]] == [{"a": 7}] * 2


@pytest.mark.model
def test_the_same_seed_says_the_same_and_max_tokens_is_the_length(shared: LlamaCppEngine, home: Home) -> None:
    request = ModelRequest(messages=LONG.messages, max_tokens=12, seed=3, temperature=0.9)
    first, second = home.run(collect(shared, request)), home.run(collect(shared, request))
    assert text_of(first) == text_of(second)
    assert isinstance(first[-1], Finish)
    assert (first[-1].reason, first[-1].usage.output_tokens) == ("length", 12)


@pytest.mark.model
def test_a_stop_string_is_not_part_of_the_answer(shared: LlamaCppEngine, home: Home) -> None:
    grammar = 'root ::= "alpha beta gamma delta"'
    request = ModelRequest(messages=REQUEST.messages, grammar=grammar, stop=("beta gamma",), max_tokens=40)
    chunks = home.run(collect(shared, request))
    assert text_of(chunks) == "alpha "
    assert isinstance(chunks[-1], Finish)
    assert chunks[-1].reason == "stop"


@pytest.mark.model
def test_a_prompt_that_does_not_fit_is_a_context_overflow(shared: LlamaCppEngine, home: Home) -> None:
    with pytest.raises(ContextOverflow):
        home.run(collect(shared, ModelRequest(prompt="word " * 2000)))


@pytest.mark.model
def test_a_full_context_ends_with_length_instead_of_hanging(shared: LlamaCppEngine, home: Home) -> None:
    endless = 'root ::= "a" root'
    chunks = home.run(collect(shared, ModelRequest(prompt="word " * 480, grammar=endless, max_tokens=1000)))
    assert isinstance(chunks[-1], Finish)
    assert chunks[-1].reason == "length"


@pytest.mark.model
def test_a_repeated_prefix_comes_from_the_cache(shared: LlamaCppEngine, home: Home) -> None:
    request = ModelRequest(prompt="The quick brown fox jumps over the lazy dog. " * 5, max_tokens=2)
    home.run(collect(shared, request))
    again = home.run(collect(shared, request))[-1]
    assert isinstance(again, Finish)
    assert again.usage.cached_tokens > 20


@pytest.mark.model
@pytest.mark.parametrize(
    "penalty",
    [
        {"presence_penalty": 2.0},
        {"frequency_penalty": 2.0},
        {"repetition_penalty": 2.0},
        {"logit_bias": dict.fromkeys(range(8000), -100.0)},
    ],
    ids=lambda penalty: next(iter(penalty)),
)
def test_a_penalty_changes_what_is_said(shared: LlamaCppEngine, home: Home, penalty: dict[str, Any]) -> None:
    banana = ModelRequest(prompt="BANANA " * 20, max_tokens=16, temperature=0.0)
    punished = msgspec.structs.replace(banana, **penalty)
    assert text_of(home.run(collect(shared, banana))) != text_of(home.run(collect(shared, punished)))


@pytest.mark.model
@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}], ids=str)
def test_where_only_the_likeliest_token_is_left_heat_changes_nothing(
    shared: LlamaCppEngine, home: Home, narrow: dict[str, Any]
) -> None:
    calm = ModelRequest(prompt="Once upon a time", max_tokens=16, temperature=0.0)
    hot = msgspec.structs.replace(calm, temperature=5.0, seed=7)
    said, wild, held = (
        text_of(home.run(collect(shared, request))) for request in (calm, hot, msgspec.structs.replace(hot, **narrow))
    )
    assert said == held != wild


@pytest.mark.model
@pytest.mark.parametrize(
    ("question", "chinese"), [("What do cats eat?", False), ("猫吃什么？", True), ("天空是什么颜色的？", True)]
)
def test_a_base_model_in_its_frame_answers_in_the_language_of_the_question_and_ends(
    question: str, chinese: bool
) -> None:
    weights = models.install("gemma") if os.environ.get("CI") else models.installed("gemma")
    if weights is None:
        pytest.skip("the small model knows no Chinese: headrace models install gemma")

    async def scenario() -> str:
        request = ModelRequest(messages=(Message(role="user", content=question),), max_tokens=60, temperature=0.0)
        async with LlamaCppEngine(weights, slots=1, context=512, base=True) as gemma:
            return text_of(await collect(gemma, request))

    said = run_async(scenario(), deadline=120)
    assert any("\u4e00" <= letter <= "\u9fff" for letter in said) == chinese, said
    assert not any(mark in said for mark in ("用户", "User:", "Assistant", "\n\n")), said


@pytest.mark.model
def test_log_probabilities_come_with_every_token(shared: LlamaCppEngine, home: Home) -> None:
    once = ModelRequest(prompt="Once upon", max_tokens=8, temperature=0.0, logprobs=2)
    for request in (once, msgspec.structs.replace(once, prompt=None, messages=(Message(role="user", content="Hi"),))):
        said = [chunk for chunk in home.run(collect(shared, request)) if isinstance(chunk, Text)]
        tokens = [token for chunk in said for token in chunk.logprobs]
        assert "".join(token.token for token in tokens) == text_of(list(said))
        assert all(token.logprob <= 0 and token.top[0].logprob >= token.top[1].logprob for token in tokens)


@pytest.mark.model
def test_the_loop_goes_on_turning_while_the_engine_works(shared: LlamaCppEngine, home: Home) -> None:
    async def scenario() -> None:
        reader = asyncio.ensure_future(collect(shared, ModelRequest(prompt="Once upon", max_tokens=24)))
        ticks = 0
        while not reader.done():
            ticks += 1
            await asyncio.sleep(0.005)
        assert ticks > len(reader.result())

    home.run(scenario())


@pytest.mark.model
def test_nobody_without_the_secret_is_served_and_it_stands_on_no_command_line(
    shared: LlamaCppEngine, home: Home
) -> None:
    assert shared.pid is not None
    process = shared._process
    assert process is not None
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(process.url + "/slots", timeout=30)
    assert refused.value.code == 401
    refused.value.close()
    if sys.platform == "linux":
        assert process.api_key not in Path(f"/proc/{shared.pid}/cmdline").read_text()
        assert process.api_key not in Path(f"/proc/{shared.pid}/environ").read_bytes().decode("utf-8", "replace")
    assert os.getpgid(shared.pid) == shared.pid, "the terminal's Ctrl-C is not for it"
    assert os.getsid(shared.pid) == os.getsid(0), "where it gives way to the event loop"


@pytest.mark.model
def test_a_killed_engine_breaks_its_streams_and_comes_back(shared: LlamaCppEngine, home: Home) -> None:
    home.run(kill_in_the_middle(shared, LONG))


@pytest.mark.model
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_no_orphan_is_left_when_the_server_is_killed(weights: Path, how: signal.Signals) -> None:
    run_async(leave_no_orphan(LlamaCppEngine, weights, how), deadline=120)


@pytest.mark.model
@pytest.mark.parametrize(("guess", "tokens"), [("ngram", 48), ("draft", 12)])
def test_guessing_ahead_changes_nothing_that_is_said(
    shared: LlamaCppEngine, home: Home, weights: Path, guess: str, tokens: int
) -> None:
    """The model is its own draft: that is no faster, but every guess is checked. Two at once, because llama.cpp aborts
    when their guesses do not fit into one batch."""
    lines = "\n".join(f"item {number}: red, green, blue, {number * 7}" for number in range(8))
    request = ModelRequest(prompt=f"{lines}\n\nAgain:\n\n{lines[:60]}", max_tokens=tokens, temperature=0.0)

    async def scenario() -> list[str]:
        draft = weights if guess == "draft" else None
        guessing = LlamaCppEngine(weights, slots=2, context=512, ngram=guess == "ngram", draft=draft)
        async with guessing as engine:
            answers = await asyncio.gather(collect(engine, request), collect(engine, request))
            assert engine.restarts == 0
            return [text_of(answer) for answer in answers]

    assert home.run(scenario()) == [text_of(home.run(collect(shared, request)))] * 2


# Without a model


async def _enter(engine: LlamaCppEngine) -> None:
    async with engine:
        pass


def test_a_missing_model_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        run_async(_enter(LlamaCppEngine(tmp_path / "none.gguf")))
    assert "headrace models install" in (caught.value.hint or "")


def test_a_file_that_is_no_model_says_so(tmp_path: Path) -> None:
    (tmp_path / "page.gguf").write_text("<html>not found</html>")
    with pytest.raises(ConfigError, match="not a GGUF file"):
        run_async(_enter(LlamaCppEngine(tmp_path / "page.gguf")))


def test_a_model_with_a_damaged_header_says_so(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    (tmp_path / "torn.gguf").write_bytes(b"GGUF" + b"\0" * 100)
    with pytest.raises(ConfigError, match="damaged"):
        run_async(_enter(LlamaCppEngine(tmp_path / "torn.gguf")))


@pytest.fixture
def torn(weights: Path, tmp_path: Path) -> Path:
    """A model whose header is whole and whose weights are cut off."""
    path = tmp_path / "torn.gguf"
    with weights.open("rb") as file:
        path.write_bytes(file.read(8 << 20))
    return path


@pytest.mark.model
def test_a_model_that_cannot_be_loaded_is_unavailable_and_names_the_log(torn: Path, tmp_path: Path) -> None:
    engine = LlamaCppEngine(torn, log=tmp_path / "log" / "llamacpp.log")
    with pytest.raises(EngineUnavailable) as caught:
        run_async(_enter(engine))
    assert str(tmp_path / "log") in (caught.value.hint or "")
    assert (tmp_path / "log" / "llamacpp.log").stat().st_mode & 0o777 == 0o600
    assert engine.pid is None


@pytest.mark.model
def test_a_log_that_cannot_be_written_is_unavailable_and_says_where(torn: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(EngineUnavailable, match="cannot be started"):
        run_async(_enter(LlamaCppEngine(torn, log=tmp_path / "file" / "llamacpp.log")))


@pytest.mark.model
def test_a_model_that_does_not_fit_is_refused_before_it_is_loaded(weights: Path, tmp_path: Path) -> None:
    log = tmp_path / "llamacpp.log"
    engine = LlamaCppEngine(weights, context=1 << 24, slots=16, log=log)
    with pytest.raises(ConfigError, match=r"needs at least [\d,]+ MiB of memory") as caught:
        run_async(_enter(engine))
    assert "engine.context_tokens" in (caught.value.hint or "")
    assert not log.exists(), "no process was started"


def test_an_engine_that_is_not_open_says_so(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="not open"):
        run_async(collect(LlamaCppEngine(tmp_path / "none.gguf")))
