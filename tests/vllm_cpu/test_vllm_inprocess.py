"""vLLM in the process: the same contract, the loop goes on turning, and what is left is stopped."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness import Home, until
from headrace.engine.port import Chunk, Engine, Finish, ModelRequest, Text, ToolCallPart
from headrace.engine.vllm.inprocess import VllmEngine
from headrace.errors import ContextOverflow, EngineRejected, EngineUnavailable
from headrace.messages import Message, ToolSpec
from headrace.testing.engine_contract import LONG, REQUEST, EngineContract, collect, text_of
from vllm_server import CONTEXT, ENVIRONMENT, SLOTS

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's and torch's own

ASK = (Message(role="user", content="Answer."),)
OPTIONS = {
    "enforce_eager": True,
    "dtype": "float32",
    "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
}


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    home = Home()
    yield home
    home.close()


@pytest.fixture(scope="module")
def shared(home: Home, tiny: Path, pirate: Path) -> Iterator[VllmEngine]:
    engine = VllmEngine(tiny, slots=SLOTS, context=CONTEXT, adapters={"pirate": pirate}, options=OPTIONS)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        home.run(engine.__aenter__())
        yield engine
        home.run(engine.__aexit__())


class TestVllmEngine(EngineContract):
    @pytest.fixture(autouse=True)
    def _shared(self, shared: VllmEngine, home: Home) -> None:
        self.shared, self.home = shared, home

    def run(self, test: Coroutine[Any, Any, None]) -> None:
        self.home.run(test)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Engine]:
        yield self.shared
        await until(lambda: self.shared.busy == 0)

    async def idle(self, engine: Engine) -> None:
        await until(lambda: self.shared.busy == 0)


def ask(home: Home, engine: VllmEngine, request: ModelRequest) -> list[Chunk]:
    chunks: list[Chunk] = home.run(collect(engine, request))
    return chunks


def finish_of(chunks: list[Chunk]) -> Finish:
    assert isinstance(chunks[-1], Finish)
    return chunks[-1]


def test_the_loop_is_never_blocked_for_long_while_it_generates(home: Home, shared: VllmEngine) -> None:
    """What the loop itself computes between two of its ticks; that it had to wait for a core is the machine's doing."""

    async def scenario() -> float:
        readers = [asyncio.ensure_future(collect(shared, TALK)) for _ in range(8)]
        worst = 0.0
        while not all(reader.done() for reader in readers):
            before = time.thread_time()
            await asyncio.sleep(0)
            worst = max(worst, time.thread_time() - before)
        return worst

    assert home.run(scenario()) < 0.01


TALK = ModelRequest(messages=LONG.messages, max_tokens=100)


def test_an_adapter_speaks_under_its_name_and_an_unknown_name_is_refused(home: Home, shared: VllmEngine) -> None:
    calm = msgspec.structs.replace(TALK, max_tokens=16, temperature=0.0)
    itself, adapted, again = (
        text_of(ask(home, shared, msgspec.structs.replace(calm, model=name))) for name in (None, "pirate", shared.model)
    )
    assert itself == again != adapted
    with pytest.raises(EngineRejected, match="nobody"):
        ask(home, shared, msgspec.structs.replace(calm, model="nobody"))


def test_leaving_ends_the_generation(home: Home, shared: VllmEngine) -> None:
    """By the metrics of the engine's process, not by what is remembered here. Of three tries the best one counts."""
    tokens = 1500
    request = ModelRequest(messages=LONG.messages, max_tokens=tokens, extra={"ignore_eos": True})

    async def generated() -> float:
        before = metric("vllm:generation_tokens_total")
        async with shared.stream(request) as chunks:
            await anext(chunks)
        assert shared.busy == 0
        await collect(shared)  # after this its gauges are of now
        await until(lambda: metric("vllm:num_requests_running") == 0)
        return metric("vllm:generation_tokens_total") - before

    assert min(home.run(generated()) for _ in range(3)) < tokens


def metric(name: str) -> float:
    from prometheus_client import REGISTRY

    samples = [sample for metric in REGISTRY.collect() for sample in metric.samples]
    return sum(float(sample.value) for sample in samples if sample.name == name)


def test_what_the_engine_aborts_itself_is_no_whole_answer(home: Home, shared: VllmEngine) -> None:
    async def scenario() -> None:
        async with shared.stream(LONG) as chunks:
            await anext(chunks)
            ((request_id, _),) = shared._llm.output_processor.request_states.items()
            await shared._llm.abort(request_id, internal=True)
            with pytest.raises(Exception, match="abort"):
                [chunk async for chunk in chunks]

    home.run(scenario())


def test_cancelling_at_any_moment_leaves_nothing_behind(home: Home, shared: VllmEngine) -> None:
    async def scenario() -> None:
        for ticks in range(60):
            reader = asyncio.ensure_future(collect(shared, LONG))
            for _ in range(ticks):
                await asyncio.sleep(0)
            reader.cancel()
            await asyncio.wait([reader])
        await until(lambda: shared.busy == 0)

    home.run(scenario())


def test_shapes_logprobs_stops_and_cache_are_as_over_http(home: Home, shared: VllmEngine) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 7}}, "required": ["a"], "additionalProperties": False}
    assert json.loads(text_of(ask(home, shared, ModelRequest(messages=ASK, json_schema=schema, max_tokens=40)))) == {
        "a": 7
    }
    assert (
        text_of(ask(home, shared, ModelRequest(messages=ASK, grammar='root ::= "帮" "día"', max_tokens=40))) == "帮día"
    )
    stopped = ask(home, shared, ModelRequest(messages=ASK, regex="alpha beta gamma", stop=("a g",), max_tokens=40))
    assert (text_of(stopped), finish_of(stopped).reason) == ("alpha bet", "stop")
    tokens = [
        token
        for chunk in ask(home, shared, msgspec.structs.replace(REQUEST, logprobs=2))
        if isinstance(chunk, Text)
        for token in chunk.logprobs
    ]
    assert len(tokens) == REQUEST.max_tokens
    assert all(len(token.top) == 2 and token.top[0].logprob >= token.logprob for token in tokens)
    salted = ModelRequest(prompt="Nobody shall learn what others ask. " * 30, max_tokens=1, scope="a")
    other = msgspec.structs.replace(salted, scope="b")
    cached = [finish_of(ask(home, shared, request)).usage.cached_tokens > 0 for request in (salted, salted, other)]
    assert cached == [False, True, False]


@pytest.mark.parametrize("choice", ["required", "clock"])
def test_a_tool_call_follows_its_schema(home: Home, shared: VllmEngine, choice: str) -> None:
    cities = {"type": "object", "properties": {"city": {"enum": ["Bonn", "Rome"]}}, "required": ["city"]}
    clock = ToolSpec(name="clock", parameters={**cities, "additionalProperties": False})
    chunks = ask(home, shared, ModelRequest(messages=ASK, tools=(clock,), tool_choice=choice, max_tokens=60))
    parts = [chunk for chunk in chunks if isinstance(chunk, ToolCallPart)]
    assert parts[0].name == "clock"
    assert json.loads("".join(part.arguments for part in parts))["city"] in ("Bonn", "Rome")
    assert finish_of(chunks).reason == "tool_calls"


def test_its_own_clock_says_how_long_it_waited_read_and_spoke(home: Home, shared: VllmEngine) -> None:
    timing = finish_of(ask(home, shared, REQUEST)).timing
    assert timing.prefill_ms is not None
    assert timing.decode_ms is not None
    assert 0 < timing.prefill_ms + timing.decode_ms < timing.total_ms


def test_a_prompt_that_does_not_fit_is_a_context_overflow_and_nonsense_is_refused(
    home: Home, shared: VllmEngine
) -> None:
    with pytest.raises(ContextOverflow):
        ask(home, shared, ModelRequest(prompt="word " * 3000, max_tokens=4))
    with pytest.raises(EngineRejected):
        ask(home, shared, ModelRequest(messages=ASK, regex="(", max_tokens=4))
    with pytest.raises(EngineRejected):
        ask(home, shared, msgspec.structs.replace(REQUEST, temperature=-1.0))


def test_an_engine_that_is_not_open_says_so(home: Home, tiny: Path) -> None:
    with pytest.raises(EngineUnavailable, match="not open"):
        ask(home, VllmEngine(tiny), REQUEST)


def test_a_folder_without_a_model_is_unavailable_and_says_why(home: Home, tmp_path: Path) -> None:
    async def enter() -> None:
        async with VllmEngine(tmp_path / "nothing"):
            pass

    with pytest.raises(EngineUnavailable, match="nothing"):
        home.run(enter())
