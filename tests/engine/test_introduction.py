"""What a server holds is asked of it, each in its own way; whatever it says or does not say, nothing fails for it."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fake_upstream import FOR_EVER, Answer, Asked, FakeUpstream, delta, json_answer, sse
from harness import run_async, until
from headrace.engine import models
from headrace.engine.anthropic.engine import AnthropicEngine
from headrace.engine.llamacpp.engine import LlamaCppEngine
from headrace.engine.openai import acquaintance, introduction
from headrace.engine.openai.engine import OpenAIEngine
from headrace.engine.port import Capabilities, ModelRequest
from headrace.engine.presets import CHAT, LLAMA_SERVER, PRESETS, VLLM, preset
from headrace.engine.remote import remote_engine
from headrace.errors import ContextOverflow, EngineUnavailable
from headrace.messages import Message
from headrace.testing.engine_contract import collect, text_of

HELLO = ModelRequest(messages=(Message(role="user", content="Hello"),))
SAYS_HI = Answer([sse(delta(content="Hi"), delta("stop"), "[DONE]")])

# What they answer, cut down to what is read and what could be mistaken for it.
ANSWERS: dict[str, tuple[str, dict[str, Any]]] = {
    "vllm": (
        "/server_info?config_format=json",
        {
            "vllm_config": {
                "model_config": {"max_model_len": 4096},
                "scheduler_config": {"max_num_seqs": 16, "max_num_batched_tokens": 2048},
                "parallel_config": {"data_parallel_size": 1, "data_parallel_size_local": 1},
            }
        },
    ),
    "sglang": (
        "/server_info",
        {
            "max_running_requests": 4096,
            "context_length": None,
            "internal_states": [
                {"max_running_requests": 4096, "effective_max_running_requests_per_dp": 48},
                {"max_running_requests": 4096, "effective_max_running_requests_per_dp": 16},
            ],
        },
    ),
    "llama-server": (
        "/props",
        {"default_generation_settings": {"n_ctx": 4096, "params": {"max_tokens": -1}}, "total_slots": 3},
    ),
    "tgi": ("/info", {"max_concurrent_requests": 128, "max_input_tokens": 4095, "max_total_tokens": 4096}),
    "ollama": (
        "/api/ps",
        {
            "models": [
                {"name": "other:latest", "model": "other:latest", "context_length": 1},
                {"name": "m:latest", "model": "m:latest", "context_length": 4096},
            ]
        },
    ),
    "lmstudio": (
        "/api/v1/models",
        {
            "models": [
                {"key": "other", "loaded_instances": [{"id": "other", "config": {"context_length": 1}}]},
                {
                    "key": "m",
                    "loaded_instances": [
                        {"id": "m", "config": {"context_length": 4096}},
                        {"id": "m:2", "config": {"context_length": 8192}},
                    ],
                    "max_context_length": 32768,
                },
            ]
        },
    ),
}
HOLDS = {
    "vllm": (4096, 16),
    "sglang": (4096, 64),
    "llama-server": (4096, 3),
    "tgi": (4096, 128),
    "ollama": (4096, None),
    "lmstudio": (4096, None),
}
every_server = pytest.mark.parametrize("name", ANSWERS)
LOCAL = [name for name, known in PRESETS.items() if not known.hosted]


def listing(name: str, **more: object) -> Answer:
    """Its models: one, and what it says of that."""
    owner = next(iter(PRESETS[name].owners), "m")
    length = {"max_model_len": 4096} if name in ("vllm", "sglang") else {}
    return json_answer({"object": "list", "data": [{"id": "m", "owned_by": owner, **length, **more}]})


def server(name: str, says: Answer | Callable[[], Answer] | None = None) -> FakeUpstream:
    """One that lists its models, says `says` where it is asked what it holds, and answers."""
    path, body = ANSWERS[name]

    def answer(asked: Asked) -> Answer:
        if asked.path == "/v1/models":
            return listing(name)
        if asked.path == path:
            return json_answer(body) if says is None else says if isinstance(says, Answer) else says()
        return SAYS_HI

    return FakeUpstream(choose=answer)


def held(engine: OpenAIEngine | AnthropicEngine) -> tuple[int | None, int | None]:
    return engine.capabilities.context_tokens, engine.capabilities.slots


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a server has not said it is asked again before every answer."""
    monkeypatch.setattr(acquaintance, "AGAIN_S", 0.0)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is never asked twice."""
    monkeypatch.setattr(acquaintance, "AGAIN_S", math.inf)


# What they say


@every_server
@pytest.mark.parametrize("named", [True, False], ids=["named", "recognised"])
def test_a_server_says_what_it_holds_and_is_asked_once(name: str, named: bool) -> None:
    if not named and not PRESETS[name].owners:
        pytest.skip("nothing in its list of models tells that it is this one")

    async def scenario() -> None:
        async with (
            server(name) as up,
            remote_engine(up.url, server=name if named else None, model="m") as engine,
        ):
            assert held(engine) == HOLDS[name]
            for _ in range(2):
                assert text_of(await collect(engine, HELLO)) == "Hi"
            assert [asked.path for asked in up.asked] == [
                "/v1/models",
                ANSWERS[name][0],
                *["/v1/chat/completions"] * 2,
            ]

    run_async(scenario())


def test_only_those_who_have_something_to_say_are_asked_for_it() -> None:
    assert set(introduction._ASKED) == set(ANSWERS)
    assert set(introduction._ASKED) <= set(LOCAL)


@pytest.mark.parametrize("name", ["openai", "gemini"])
def test_a_service_is_never_asked(name: str) -> None:
    async def scenario() -> None:
        async with FakeUpstream(SAYS_HI) as up, remote_engine(up.url, server=name, model="m") as engine:
            await collect(engine, HELLO)
            assert [asked.path for asked in up.asked] == ["/v1/chat/completions"]

    run_async(scenario())


@pytest.mark.parametrize("loopback", [True, False])
def test_an_engine_whose_capabilities_are_known_asks_nothing(loopback: bool) -> None:
    """Such as that of the embedded model's process."""
    able = Capabilities(context_tokens=512, slots=2)

    async def scenario() -> None:
        async with (
            FakeUpstream(SAYS_HI) as up,
            OpenAIEngine(up.url, model="m", capabilities=able, loopback=loopback) as engine,
        ):
            await collect(engine, HELLO)
            assert [asked.path for asked in up.asked] == ["/v1/chat/completions"]
            assert engine.capabilities == able

    run_async(scenario())


def test_what_the_caller_knows_better_stands() -> None:
    able = Capabilities(slots=2)

    async def scenario() -> None:
        async with (
            server("llama-server") as up,
            OpenAIEngine(up.url, model="m", capabilities=able, preset=LLAMA_SERVER) as engine,
        ):
            assert engine.capabilities == Capabilities(context_tokens=4096, slots=2)

    run_async(scenario())


@pytest.mark.parametrize(
    ("parallel", "slots"),
    [
        ({"data_parallel_size": 4, "data_parallel_size_local": 2}, 64),
        ({"data_parallel_size": 4, "data_parallel_size_local": 2, "data_parallel_hybrid_lb": True}, 32),
        ({"data_parallel_size": 4, "data_parallel_size_local": 1, "data_parallel_external_lb": True}, 16),
        ({}, 16),
    ],
)
def test_each_data_parallel_rank_of_vllm_behind_this_address_has_slots(parallel: dict[str, Any], slots: int) -> None:
    info = {"vllm_config": {"scheduler_config": {"max_num_seqs": 16}, "parallel_config": parallel}}

    async def scenario() -> None:
        async with server("vllm", json_answer(info)) as up, remote_engine(up.url, server="vllm", model="m") as engine:
            assert engine.capabilities.slots == slots

    run_async(scenario())


@pytest.mark.parametrize(("model", "context"), [("base", 4096), ("small", 1024), ("adapter", 1024)])
def test_the_context_is_that_of_the_model_and_else_the_least_of_all(model: str, context: int) -> None:
    entries = [
        {"id": "base", "owned_by": "vllm", "max_model_len": 4096},
        {"id": "small", "owned_by": "vllm", "max_model_len": 1024},
        {"id": "adapter", "owned_by": "vllm", "max_model_len": None, "parent": "base"},
    ]
    listed = json_answer({"data": entries})

    async def scenario() -> None:
        async with (
            FakeUpstream(choose=lambda asked: listed if asked.path == "/v1/models" else json_answer({}, 404)) as up,
            remote_engine(up.url, model=model) as engine,
        ):
            assert held(engine) == (context, None)

    run_async(scenario())


def test_it_is_asked_beside_its_api_where_that_has_a_prefix() -> None:
    async def scenario() -> None:
        paths = {"/llama/v1/models": listing("llama-server"), "/llama/props": json_answer(ANSWERS["llama-server"][1])}
        async with (
            FakeUpstream(choose=lambda asked: paths[asked.path]) as up,
            remote_engine(f"{up.url}/llama/v1", server="llama-server", model="m") as engine,
        ):
            assert held(engine) == (4096, 3)

    run_async(scenario())


@pytest.mark.parametrize("newer", [json_answer({"detail": "Not Found"}, 404), Answer([b""], 404), Answer([], status=0)])
def test_an_older_sglang_says_at_its_own_place_what_it_holds(newer: Answer) -> None:
    older = {"/v1/models": listing("sglang"), "/get_server_info": json_answer(ANSWERS["sglang"][1])}

    async def scenario() -> None:
        async with (
            FakeUpstream(choose=lambda asked: older.get(asked.path, newer)) as up,
            remote_engine(up.url, server="sglang", model="m") as engine,
        ):
            assert held(engine) == HOLDS["sglang"]

    run_async(scenario())


# What they do not say

NOTHING = [
    json_answer({"detail": "Not Found"}, 404),
    json_answer({"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}, 503),
    json_answer([]),
    json_answer(None),
    json_answer({"models": None, "internal_states": [None, 7], "vllm_config": 7, "default_generation_settings": []}),
    json_answer({"models": [7, {"name": "m", "key": "m", "context_length": "many", "loaded_instances": {}}]}),
    json_answer({"total_slots": "3", "max_total_tokens": -1, "max_concurrent_requests": True}),
    json_answer({"vllm_config": {"scheduler_config": {"max_num_seqs": 0}, "parallel_config": {}}}),
    Answer([b"<html>Bad gateway</html>"], 502, {"Content-Type": "text/html"}),
    Answer([b'{"total_slots": 3'], 200, {"Content-Type": "application/json"}),
    Answer([b"\xff\xfe"], 200),
    Answer([b"[" * 100_000], 200),
    Answer([b""], 404),
    Answer([], status=0),
]


@every_server
@pytest.mark.parametrize("nothing", NOTHING)
def test_what_a_server_does_not_say_is_unknown_and_fails_nothing(name: str, nothing: Answer) -> None:
    async def scenario() -> None:
        async with server(name, nothing) as up, remote_engine(up.url, server=name, model="m") as engine:
            context = 4096 if name in ("vllm", "sglang") else None
            assert held(engine) == (context, None)
            assert text_of(await collect(engine, HELLO)) == "Hi"

    run_async(scenario())


@pytest.mark.parametrize("nonsense", ["4096", 4096.5, [], -1, 0, True, None])
def test_a_length_that_is_none_hides_nobody(nonsense: object) -> None:
    async def scenario() -> None:
        listed = listing("vllm", max_model_len=nonsense)
        async with FakeUpstream(choose=lambda _: listed) as up, remote_engine(up.url) as engine:
            assert engine.capabilities == VLLM.capabilities

    run_async(scenario())


@pytest.mark.usefixtures("patient")
def test_a_server_that_keeps_silent_holds_up_the_start_for_a_moment_and_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(introduction, "MORE_WITHIN_S", 0.05)

    async def scenario() -> None:
        async with (
            server("llama-server", Answer([FOR_EVER])) as up,
            remote_engine(up.url, server="llama-server", model="m") as engine,
        ):
            for _ in range(3):
                assert text_of(await collect(engine, HELLO)) == "Hi"
            assert [asked.path for asked in up.asked].count("/props") == 1
            assert held(engine) == (None, None)

    run_async(scenario())


# When they say it


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("named", [True, False], ids=["named", "recognised"])
def test_what_could_not_be_learned_at_the_start_is_learned_with_the_first_answer(named: bool) -> None:
    async def scenario() -> None:
        async with server("llama-server") as up:
            pass  # its port is free now
        async with remote_engine(up.url, server="llama-server" if named else None, model="m") as engine:
            assert held(engine) == (None, None)
            with pytest.raises(EngineUnavailable):
                await collect(engine, HELLO)
            async with up:
                await collect(engine, HELLO)
                await until(lambda: held(engine) == (4096, 3))

    run_async(scenario())


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("name", ["ollama", "lmstudio"])
def test_a_model_that_is_loaded_for_the_first_answer_is_known_before_the_next(name: str) -> None:
    loaded = iter([json_answer({"models": []})] * 2)

    async def scenario() -> None:
        async with (
            server(name, lambda: next(loaded, json_answer(ANSWERS[name][1]))) as up,
            remote_engine(up.url, server=name, model="m") as engine,
        ):

            def asked() -> int:
                return [asked.path for asked in up.asked].count(ANSWERS[name][0])

            await collect(engine, HELLO)
            await until(lambda: asked() == 2)
            assert engine.capabilities.context_tokens is None
            await collect(engine, HELLO)
            await until(lambda: engine.capabilities.context_tokens == 4096)
            await collect(engine, HELLO)
            assert asked() == 3

    run_async(scenario())


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("named", [True, False], ids=["named", "recognised"])
def test_a_server_that_was_gone_may_come_back_with_other_settings(named: bool) -> None:
    slots = 3

    def props() -> Answer:
        return json_answer({"default_generation_settings": {"n_ctx": 4096}, "total_slots": slots})

    async def scenario() -> None:
        nonlocal slots
        up = server("llama-server", props)
        async with up:
            engine = remote_engine(up.url, server="llama-server" if named else None, model="m")
            await engine.__aenter__()
        try:
            with pytest.raises(EngineUnavailable):
                await collect(engine, HELLO)
            assert held(engine) == (4096, 3), "as long as nothing newer is known"
            slots = 8
            async with up:
                await collect(engine, HELLO)
                await until(lambda: held(engine) == (4096, 8))
                before = len(up.asked)
                await collect(engine, HELLO)
                assert len(up.asked) == before + 1, "and then it is asked no more"
        finally:
            await engine.__aexit__(None, None, None)

    run_async(scenario())


@pytest.mark.usefixtures("impatient")
def test_what_was_known_stands_while_a_server_that_came_back_still_loads() -> None:
    says = [json_answer(ANSWERS["llama-server"][1]), json_answer({"error": {"code": 503}}, 503)]

    async def scenario() -> None:
        up = server("llama-server", lambda: says.pop(0))
        async with up:
            engine = remote_engine(up.url, model="m")
            await engine.__aenter__()
        try:
            with pytest.raises(EngineUnavailable):
                await collect(engine, HELLO)
            async with up:
                await collect(engine, HELLO)
                await until(lambda: not says)
                assert held(engine) == (4096, 3)
        finally:
            await engine.__aexit__(None, None, None)

    run_async(scenario())


@pytest.mark.usefixtures("impatient")
def test_no_answer_waits_while_a_server_is_asked_and_leaving_ends_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(introduction, "MORE_WITHIN_S", 60.0)
    says = [json_answer({"error": {"code": 503}}, 503), Answer([FOR_EVER])]

    async def scenario() -> None:
        async with (
            server("llama-server", lambda: says.pop(0)) as up,
            remote_engine(up.url, server="llama-server", model="m") as engine,
        ):
            for _ in range(3):
                assert text_of(await collect(engine, HELLO)) == "Hi"
            await until(lambda: not says)
            assert [asked.path for asked in up.asked].count("/props") == 2
            assert held(engine) == (None, None)

    run_async(scenario())


def test_a_list_of_models_that_nobody_can_read_fails_nothing() -> None:
    async def scenario() -> None:
        deep = Answer([b'{"data":[{"id":"m","max_model_len":' + b"[" * 100_000])
        async with FakeUpstream(choose=lambda _: deep) as up, remote_engine(up.url, model="m") as engine:
            assert engine.capabilities == CHAT

    run_async(scenario())


def test_a_stranger_is_a_stranger() -> None:
    async def scenario() -> None:
        listed = json_answer({"data": [{"id": "m", "owned_by": "nobody"}]})
        async with FakeUpstream(choose=lambda _: listed) as up, remote_engine(up.url, model="m") as engine:
            assert engine.capabilities == CHAT
            assert [asked.path for asked in up.asked] == ["/v1/models"]

    run_async(scenario())


# The real one


@pytest.fixture(scope="module")
def weights() -> Path:
    return models.install("smollm2")


@pytest.mark.model
def test_llama_cpp_s_own_server_tells_its_slots_and_the_context_of_each(weights: Path) -> None:
    prompt = ModelRequest(prompt="one two three " * 120, max_tokens=1)  # for one slot too long, of three together not

    async def scenario() -> None:
        async with LlamaCppEngine(weights, slots=3, context=256, linger=0) as embedded:
            process = embedded._process
            assert process is not None
            for name in ("llama-server", None):
                async with remote_engine(process.url, server=name, api_key=process.api_key) as engine:
                    known = preset("llama-server").capabilities
                    assert held(engine) == (256, 3) == held_of(embedded.capabilities)
                    assert engine.capabilities.grammar == known.grammar
                    with pytest.raises(ContextOverflow):
                        await collect(engine, prompt)

    run_async(scenario(), deadline=180)


def held_of(able: Capabilities) -> tuple[int | None, int | None]:
    return able.context_tokens, able.slots
