"""A real vLLM behind the engine for compatible servers: the contract, and what vLLM adds to the protocol."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness import run_async, until
from headrace.engine.openai.engine import OpenAIEngine
from headrace.engine.port import Chunk, Engine, Finish, ModelRequest, Text, ToolCallPart
from headrace.engine.presets import VLLM
from headrace.engine.trial import put_on_trial
from headrace.errors import ContextOverflow, EngineRejected
from headrace.messages import Message, ToolSpec
from headrace.testing.engine_contract import REQUEST, EngineContract, collect, text_of
from vllm_server import CONTEXT, SLOTS, VllmServer

ASK = (Message(role="user", content="Answer."),)
CITIES = {
    "type": "object",
    "properties": {"city": {"enum": ["Bonn", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
CLOCK = ToolSpec(name="clock", description="What time it is there.", parameters=CITIES)


def engine_of(server: VllmServer) -> OpenAIEngine:
    """Nobody tells it what it speaks to: it asks."""
    return OpenAIEngine(server.url, model="tiny", capabilities=None)


def answer(server: VllmServer, request: ModelRequest) -> list[Chunk]:
    async def ask() -> list[Chunk]:
        async with engine_of(server) as engine:
            return await collect(engine, request)

    return run_async(ask(), deadline=120)


def finish_of(chunks: list[Chunk]) -> Finish:
    assert isinstance(chunks[-1], Finish)
    return chunks[-1]


class TestVllmServer(EngineContract):
    embeds = False  # vLLM could; this model was started to generate

    @pytest.fixture(autouse=True)
    def _server(self, server: VllmServer) -> None:
        self.server = server

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Engine]:
        async with engine_of(self.server) as engine:
            yield engine

    async def idle(self, engine: Engine) -> None:
        await self.server.until_idle()


def test_it_is_recognised_and_can_all_that_vllm_can(server: VllmServer) -> None:
    async def scenario() -> None:
        async with engine_of(server) as engine:
            told = engine.capabilities
            assert told.context_tokens == CONTEXT
            assert msgspec.structs.replace(told, context_tokens=None, slots=None) == VLLM.capabilities

    run_async(scenario())


def test_closing_the_stream_ends_the_generation(server: VllmServer) -> None:
    """One of five tries suffices: on a busy machine vLLM may say all its tokens before it looks at the connection."""
    tokens = 1500
    request = ModelRequest(messages=ASK, max_tokens=tokens, extra={"ignore_eos": True})  # or it ends after any token

    async def generated() -> float:
        before = server.metric("generation_tokens_total")
        async with engine_of(server) as engine:
            async with engine.stream(request) as chunks:
                await anext(chunks)
            await collect(engine)  # after this its gauges are of now
        await server.until_idle()
        return server.metric("generation_tokens_total") - before

    assert min(run_async(generated(), deadline=60) for _ in range(5)) < tokens


def test_a_shape_holds_even_a_model_that_says_nonsense(server: VllmServer) -> None:
    schema = {**CITIES, "properties": {"city": {"const": "Rome"}}}
    grammar = 'root ::= "foo bar " ("帮" | "día")'
    shapes = (
        ModelRequest(messages=ASK, json_schema=schema, max_tokens=60),
        ModelRequest(prompt="The JSON: ", json_schema=schema, max_tokens=60),
        ModelRequest(messages=ASK, regex="(yes|no){3}", max_tokens=30),
        ModelRequest(messages=ASK, grammar=grammar, max_tokens=30),
        ModelRequest(messages=ASK, extra={"structured_outputs": {"choice": ["red", "blue"]}}, max_tokens=30),
    )
    first, second, regex, free, choice = (text_of(answer(server, shape)) for shape in shapes)
    assert [json.loads(first), json.loads(second)] == [{"city": "Rome"}] * 2
    assert len(regex.replace("yes", "").replace("no", "")) == 0
    assert regex
    assert free in ("foo bar 帮", "foo bar día")
    assert choice in ("red", "blue")


@pytest.mark.parametrize("choice", ["required", "clock"])
def test_a_tool_call_follows_its_schema(server: VllmServer, tiny: Path, choice: str) -> None:
    request = ModelRequest(messages=ASK, tools=(CLOCK,), tool_choice=choice, max_tokens=400, logit_bias=no_blanks(tiny))
    chunks = answer(server, request)
    parts = [chunk for chunk in chunks if isinstance(chunk, ToolCallPart)]
    calls: dict[int, str] = {}
    for part in parts:
        calls[part.index] = calls.get(part.index, "") + part.arguments
    assert {part.name for part in parts if part.name is not None} == {"clock"}
    assert all(json.loads(arguments)["city"] in ("Bonn", "Rome") for arguments in calls.values())
    assert finish_of(chunks).reason == "tool_calls"


def no_blanks(model: Path) -> dict[int, float]:
    """A call may hold any number of blanks, and this model would go on for ever."""
    vocabulary = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
    return {at: -100.0 for token, at in vocabulary.items() if not token.strip("ĠĊĉč")}


def test_log_probabilities_come_with_the_text_and_cover_every_token(server: VllmServer) -> None:
    chunks = answer(server, msgspec.structs.replace(REQUEST, logprobs=2))
    tokens = [token for chunk in chunks if isinstance(chunk, Text) for token in chunk.logprobs]
    assert len(tokens) == finish_of(chunks).usage.output_tokens
    assert b"".join(token.data or b"" for token in tokens).decode() == text_of(chunks)
    assert all(token.logprob <= 0 and len(token.top) == 2 for token in tokens)
    assert all(token.top[0].logprob >= token.logprob for token in tokens)


def test_a_prefix_is_found_in_the_cache_and_usage_and_metrics_agree(server: VllmServer) -> None:
    request = ModelRequest(prompt="Once upon a time there was a licence. " * 40, max_tokens=2)
    hits = server.metric("prefix_cache_hits_total")
    first, second = (finish_of(answer(server, request)).usage for _ in range(2))
    assert first.cached_tokens == 0
    assert second.cached_tokens >= 128  # whole blocks
    assert server.metric("prefix_cache_hits_total") - hits == second.cached_tokens


def test_a_scope_keeps_tenants_out_of_each_others_cache(server: VllmServer) -> None:
    def cached(scope: str) -> int:
        prompt = "Nobody shall learn from the time it takes what others have asked. " * 20
        request = ModelRequest(prompt=prompt, max_tokens=1, scope=scope)
        return finish_of(answer(server, request)).usage.cached_tokens

    assert [cached("acme") > 0, cached("acme") > 0, cached("other") > 0, cached("other") > 0] == [
        *(False, True),
        *(False, True),
    ]


def test_who_is_more_urgent_overtakes_those_that_wait(server: VllmServer) -> None:
    """All places are taken when they come, the most urgent last. Then one place gets free, for one after the other. It
    is vLLM's own line: one that is not asked for its slots has none in front of it."""

    async def scenario() -> list[int]:
        began: list[int] = []

        async def ask(priority: int) -> None:
            async with engine.stream(ModelRequest(messages=ASK, max_tokens=4, priority=priority)) as chunks:
                await anext(chunks)
                began.append(priority)
                [chunk async for chunk in chunks]

        asks_nothing = OpenAIEngine(server.url, model="tiny", capabilities=VLLM.capabilities, spelling=VLLM.spelling)
        async with asks_nothing as engine, asyncio.TaskGroup() as group:
            taken = [group.create_task(collect(engine, FILLER)) for _ in range(SLOTS)]
            await server.until("num_requests_running", SLOTS)
            for waiting, priority in enumerate((9, 5, 1), start=1):
                group.create_task(ask(priority))
                await server.until("num_requests_waiting", waiting)
            taken.pop().cancel()
            await until(lambda: len(began) == 3, deadline=30)
            for filler in taken:
                filler.cancel()
        return began

    assert run_async(scenario(), deadline=120) == [1, 5, 9]


FILLER = ModelRequest(messages=ASK, max_tokens=1900, extra={"ignore_eos": True})


def test_a_prompt_that_does_not_fit_is_a_context_overflow(server: VllmServer) -> None:
    with pytest.raises(ContextOverflow):
        answer(server, ModelRequest(prompt="word " * 3000, max_tokens=4))
    with pytest.raises(ContextOverflow):
        answer(server, ModelRequest(messages=(Message(role="user", content="word " * 3000),)))


def test_an_adapter_speaks_under_its_name(server: VllmServer) -> None:
    calm = ModelRequest(messages=ASK, max_tokens=16, temperature=0.0)
    itself, adapted, again = (
        text_of(answer(server, msgspec.structs.replace(calm, model=name))) for name in (None, "pirate", "tiny")
    )
    assert itself == again != adapted


def test_an_unknown_model_is_refused_by_name(server: VllmServer) -> None:
    with pytest.raises(EngineRejected, match="adapter-of-nobody"):
        answer(server, msgspec.structs.replace(REQUEST, model="adapter-of-nobody"))


def test_half_characters_are_held_until_they_are_whole(server: VllmServer) -> None:
    """The model has no token for these characters: each comes in three or four pieces."""
    said = "帮我一下 😀 día"
    request = ModelRequest(messages=ASK, extra={"structured_outputs": {"choice": [said]}}, max_tokens=60)
    chunks = answer(server, request)
    assert text_of(chunks) == said
    assert all("�" not in chunk.text for chunk in chunks if isinstance(chunk, Text))
    assert finish_of(chunks).usage.output_tokens > len([chunk for chunk in chunks if isinstance(chunk, Text)])


def test_stop_strings_across_chunks_end_the_answer_and_do_not_show(server: VllmServer) -> None:
    request = ModelRequest(
        messages=ASK,
        extra={"structured_outputs": {"choice": ["alpha beta gamma delta"]}},
        stop=("beta gamma",),
        max_tokens=60,
    )
    chunks = answer(server, request)
    assert text_of(chunks) == "alpha "
    assert finish_of(chunks).reason == "stop"


def test_the_doctor_tells_the_settings_that_it_runs_with(server: VllmServer) -> None:
    trial = run_async(put_on_trial(engine_of(server)), deadline=120)
    assert trial.error is None
    told = [remark.text for remark in trial.remarks]
    assert "weights: torch.float32, quantization none" in told
    assert "chunked prefill: at most 2048 tokens a step" in told
    assert any(re.fullmatch(r"KV cache: \d+ tokens, type auto", text) for text in told)
    assert f"at most {SLOTS} answers at once" in told
    assert any(text.startswith("prefix cache: ") for text in told)
    assert not any("first come" in text for text in told)
    for recipe in ("speculative", "sliding", "parallel", "the checkpoint"):
        assert not any(recipe in text for text in told), "it was started without"
    assert [remark for remark in trial.remarks if remark.level == "note"] == []


def test_its_own_account_of_itself_can_be_read(server: VllmServer) -> None:
    async def scenario() -> tuple[Any, Any]:
        async with engine_of(server) as engine:
            version = msgspec.json.decode(await engine.get("/version"))
            info = msgspec.json.decode(await engine.get("/server_info?config_format=json"))
        return version, info

    version, info = run_async(scenario())
    assert version["version"]
    assert info["vllm_config"]["scheduler_config"]["policy"] == "priority"
