"""What is said of each model server: its stream is read, what it can do is spelled, what it cannot is refused."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fake_upstream import Answer, Asked, FakeUpstream, byte_by_byte, delta, json_answer, sse
from harness import run_async
from headrace.engine.admission import require_supported
from headrace.engine.anthropic.engine import AnthropicEngine
from headrace.engine.anthropic.request import messages_body
from headrace.engine.openai.engine import OpenAIEngine
from headrace.engine.openai.request import completion_body
from headrace.engine.port import PARAMETERS, Chunk, Finish, ModelRequest, Text, Thinking, ToolCallPart
from headrace.engine.presets import PRESETS, Preset
from headrace.engine.remote import remote_engine
from headrace.errors import ConfigError, EngineRejected
from headrace.messages import Message, ToolRequest, ToolSpec
from headrace.testing.engine_contract import collect

STREAMS = Path(__file__).parent / "streams"
HELLO = ModelRequest(messages=(Message(role="user", content="Hello"),))
CLOCK, WATCH = ToolSpec(name="clock"), ToolSpec(name="watch")
every_preset = pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)


# Their streams

THOUGHTS = {
    "openai": "",
    "tgi": "",
    "triton": "",
    "anthropic": "The weather must be asked for.",
    "gemini": "**Weather**\n\nI must ask for it.",
}
CACHED = {"openai": 48, "llama-server": 48, "vllm": 48, "sglang": 48, "tensorrt-llm": 48, "anthropic": 300}


def read(preset: Preset, *, cut: bool) -> list[Chunk]:
    """The chunks of an answer as this server sends it, in one piece or byte by byte."""

    async def scenario() -> list[Chunk]:
        stream = (STREAMS / f"{preset.name}.sse").read_bytes()
        request = msgspec.structs.replace(HELLO, tools=(CLOCK,))
        async with (
            FakeUpstream(byte_by_byte(stream) if cut else stream) as upstream,
            remote_engine(upstream.url, server=preset.name, model="m") as engine,
        ):
            return await collect(engine, request)

    return run_async(scenario())


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "byte by byte"])
@every_preset
def test_the_stream_of_every_server_is_text_thinking_and_calls(preset: Preset, cut: bool) -> None:
    chunks = read(preset, cut=cut)
    thought = "".join(chunk.text for chunk in chunks if isinstance(chunk, Thinking))
    calls = [chunk for chunk in chunks if isinstance(chunk, ToolCallPart) and chunk.index == 0]
    finish = chunks[-1]
    assert "".join(chunk.text for chunk in chunks if isinstance(chunk, Text)) == "Let me look."
    assert thought == THOUGHTS.get(preset.name, "Ask for the weather.")
    assert calls[0].name == "get_weather"
    assert json.loads("".join(call.arguments for call in calls)) == {"city": "Köln"}
    assert isinstance(finish, Finish)
    assert finish.reason == "tool_calls"
    assert (finish.usage.input_tokens, finish.usage.output_tokens) in [(61, 18), (61, 19), (332, 81)]
    assert finish.usage.cached_tokens == CACHED.get(preset.name, 0)


@pytest.mark.parametrize("name", ["llama-server", "vllm"])
def test_what_a_server_measured_is_the_timing(name: str) -> None:
    finish = read(PRESETS[name], cut=False)[-1]
    assert isinstance(finish, Finish)
    assert (finish.timing.prefill_ms, finish.timing.decode_ms) == (21.5, 130.25)


def test_openai_s_log_probabilities_come_with_the_text() -> None:
    said = [chunk for chunk in read(PRESETS["openai"], cut=True) if isinstance(chunk, Text)]
    assert [[token.token for token in chunk.logprobs] for chunk in said] == [["Let", " me"], [" look."]]
    assert said[0].logprobs[0].data == b"Let"


# What they can do, and how it is spelled

ASKED: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 40,
    "min_p": 0.1,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.1,
    "seed": 7,
    "stop": ("END",),
    "logit_bias": {5: -100.0},
    "max_tokens": 9,
    "grammar": 'root ::= "a"',
    "regex": "a+",
    "json_schema": {"type": "object"},
    "logprobs": 2,
    "continued": "Well",
    "prompt": "Once upon a time",
}


def body_for(preset: Preset, **asked: Any) -> dict[str, Any]:
    """What the server is sent. Raises EngineRejected."""
    request = msgspec.structs.replace(HELLO, **asked)
    if request.prompt is not None:
        request = msgspec.structs.replace(request, messages=())
    require_supported(request, preset.capabilities, engine=preset.name)
    if preset.api == "messages":
        return messages_body(request, model="m", max_tokens=4096)
    return completion_body(request, model="m", spelling=preset.spelling)


def sent_or_refused(preset: Preset, **asked: Any) -> dict[str, Any] | str:
    """The body, or the words of the refusal."""
    try:
        return body_for(preset, **asked)
    except EngineRejected as refusal:
        return refusal.message


def test_who_may_wait_is_told_to_the_server_that_has_a_line() -> None:
    assert body_for(PRESETS["vllm"], priority=5)["priority"] == 5
    assert "priority" not in body_for(PRESETS["vllm"]), "a server without priorities refuses them"
    assert "priority" not in body_for(PRESETS["openai"], priority=5)


@pytest.mark.parametrize("field", ASKED)
@every_preset
def test_whatever_is_asked_of_a_server_is_sent_or_refused_and_never_dropped(preset: Preset, field: str) -> None:
    body = sent_or_refused(preset, **{field: ASKED[field]})
    if isinstance(body, str):
        assert f"`{field}`" in body
    else:
        assert body != body_for(preset)


@pytest.mark.parametrize("choice", [None, "auto", "none", "required", "clock"])
@every_preset
def test_every_tool_choice_is_sent_or_refused(preset: Preset, choice: str | None) -> None:
    body = sent_or_refused(preset, tools=(CLOCK, WATCH), tool_choice=choice)
    if isinstance(body, str):
        assert "`tool_choice`" in body
    elif choice == "none":
        assert "none" in str(body.get("tool_choice")) or "tools" not in body
    elif choice == "clock":
        assert "clock" in str(body["tool_choice"]) or (body["tool_choice"], len(body["tools"])) == ("required", 1)
    elif choice == "required":
        assert body["tool_choice"] in ("required", {"type": "any"})
    else:
        assert len(body["tools"]) == 2


SCHEMA = {"type": "object"}
OPENAI_SCHEMA = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}


@pytest.mark.parametrize(
    ("name", "asked", "spelled"),
    [
        ("openai", {"max_tokens": 9}, {"max_completion_tokens": 9}),
        ("openai", {"json_schema": SCHEMA}, {"response_format": OPENAI_SCHEMA}),
        ("openai", {"stop": tuple("abcdef")}, {"stop": list("abcd")}),
        ("vllm", {"repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
        ("vllm", {"regex": "a+"}, {"structured_outputs": {"regex": "a+"}}),
        ("vllm", {"grammar": "root ::= x"}, {"structured_outputs": {"grammar": "root ::= x"}}),
        ("sglang", {"regex": "a+"}, {"regex": "a+"}),
        ("sglang", {"grammar": "root ::= x"}, {"ebnf": "root ::= x"}),
        ("llama-server", {"repetition_penalty": 1.1}, {"repeat_penalty": 1.1}),
        ("llama-server", {"grammar": "root ::= x"}, {"grammar": "root ::= x"}),
        ("lmstudio", {"repetition_penalty": 1.1}, {"repeat_penalty": 1.1}),
        ("tgi", {"json_schema": SCHEMA}, {"response_format": {"type": "json_object", "value": SCHEMA}}),
        ("tgi", {"regex": "a+"}, {"response_format": {"type": "regex", "value": "a+"}}),
        ("tensorrt-llm", {"grammar": "root ::= x"}, {"response_format": {"type": "ebnf", "ebnf": "root ::= x"}}),
        ("tensorrt-llm", {"tools": (CLOCK,)}, {"tool_choice": "auto"}),
        ("anthropic", {"stop": ("END",)}, {"stop_sequences": ["END"]}),
        ("vllm", {"logprobs": 0}, {"logprobs": True, "top_logprobs": 1}),
        ("vllm", {"logprobs": 3, "prompt": "Once"}, {"logprobs": 3}),
    ],
)
def test_servers_have_words_of_their_own(name: str, asked: dict[str, Any], spelled: dict[str, Any]) -> None:
    body = body_for(PRESETS[name], **asked)
    assert spelled.items() <= body.items()
    assert not set(asked) - set(spelled) & set(body) - {"tools", "prompt"}


@every_preset
def test_a_scope_is_told_only_to_a_server_that_keeps_them_apart_and_vllm_holds_calls_to_their_schema(
    preset: Preset,
) -> None:
    body = sent_or_refused(preset, scope="acme", tools=(CLOCK,))
    assert isinstance(body, dict)
    assert ("acme" in str(body)) == (preset.name == "vllm")
    assert ("'strict': True" in str(body)) == (preset.name == "vllm")
    assert body.get("cache_salt", "acme") == "acme"


def test_gemini_is_told_that_a_call_has_no_signature() -> None:
    called = Message(role="assistant", tool_calls=(ToolRequest(call_id="c", name="clock", arguments="{}"),))
    body = completion_body(ModelRequest(messages=(called,)), model="m", spelling=PRESETS["gemini"].spelling)
    (call,) = body["messages"][0]["tool_calls"]
    assert call["extra_content"]["google"]["thought_signature"] == "skip_thought_signature_validator"


def test_gemini_gets_back_the_signature_of_a_call_and_no_other_server_gets_any() -> None:
    async def scenario(name: str) -> dict[str, Any]:
        stream = (STREAMS / "gemini.sse").read_bytes()
        called = ToolRequest(call_id="ours", name="get_weather", arguments='{"city": "Köln"}')
        turn = Message(role="assistant", content="Let me look.", tool_calls=(called,))
        first = msgspec.structs.replace(HELLO, tools=(CLOCK,), session="s")
        answer = Message(role="tool", call_id="ours", content="rain")
        async with FakeUpstream(stream) as up, remote_engine(up.url, server=name, model="m") as engine:
            await collect(engine, first)
            await collect(engine, msgspec.structs.replace(first, messages=(*HELLO.messages, turn, answer)))
            (call,) = up.asked[-1].body["messages"][1]["tool_calls"]
            assert isinstance(call, dict)
            return call

    assert run_async(scenario("gemini"))["extra_content"] == {"google": {"thought_signature": "CrIC"}}
    assert "extra_content" not in run_async(scenario("vllm"))


@every_preset
def test_what_is_said_of_a_server_is_of_fields_that_there_are(preset: Preset) -> None:
    fields = {field.name for field in msgspec.structs.fields(ModelRequest)}
    assert preset.capabilities.sampling <= PARAMETERS
    assert set(preset.spelling.fields) <= fields


# Which server it is


def test_a_preset_knows_its_url_and_a_service_is_known_by_its_address() -> None:
    for name, preset in PRESETS.items():
        engine = remote_engine(None, server=name, model="m")
        assert engine.capabilities == preset.capabilities
        assert engine.name == name
    assert isinstance(remote_engine("https://api.anthropic.com", model="m"), AnthropicEngine)
    openai = remote_engine("https://api.openai.com/v1", model="m")
    assert isinstance(openai, OpenAIEngine)
    assert openai.capabilities == PRESETS["openai"].capabilities


@pytest.mark.parametrize("name", ["vllm", "sglang", "llama-server", "ollama", "lmstudio", "tensorrt-llm", "triton"])
def test_a_server_is_known_by_who_owns_its_models(name: str) -> None:
    preset = PRESETS[name]
    (owner,) = preset.owners
    regex = msgspec.structs.replace(HELLO, repetition_penalty=1.5)

    def answer(asked: Asked) -> Answer:
        if asked.path == "/v1/models":
            return json_answer({"object": "list", "data": [{"id": "m", "object": "model", "owned_by": owner}]})
        return Answer([sse(delta(content="a"), delta("stop"), "[DONE]")])

    async def scenario() -> None:
        async with FakeUpstream(choose=answer) as upstream, remote_engine(upstream.url) as engine:
            assert engine.capabilities == preset.capabilities
            if "repetition_penalty" in preset.capabilities.sampling:
                await collect(engine, regex)
                assert completion_body(regex, model="default", spelling=preset.spelling) == upstream.asked[-1].body

    run_async(scenario())


def test_a_setting_says_more_than_is_known() -> None:
    assert not remote_engine(None, server="vllm", continuation=False).capabilities.continuation
    assert remote_engine("http://127.0.0.1:1", continuation=True).capabilities.continuation
    assert not remote_engine("http://127.0.0.1:1", continuation=False).capabilities.continuation


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"url": None}, "named"),
        ({"url": None, "server": "gpt"}, "no model server"),
        ({"url": None, "server": "anthropic"}, "many models"),
        ({"url": "https://api.openai.com/v1"}, "many models"),
    ],
)
def test_a_server_that_cannot_be_asked_is_a_config_error(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        remote_engine(**asked)
    assert caught.value.hint


def test_the_table_in_the_documents_says_the_same() -> None:
    page = (Path(__file__).parents[2] / "docs" / "engines.md").read_text(encoding="utf-8")
    rows = {cells[0].strip(" `"): cells for cells in (line.strip("| \n").split("|") for line in page.split("\n"))}
    for name, preset in PRESETS.items():
        _, where, key, _, shapes, goes_on = (cell.strip(" `") for cell in rows[name])
        able = preset.capabilities
        assert where.removeprefix("port ") in preset.url
        assert key == (preset.key_variable or "")
        named = {"JSON schema": able.json_schema, "regex": able.regex, "grammar": able.grammar}
        assert shapes == ", ".join(shape for shape, can in named.items() if can)
        assert (goes_on == "yes") == able.continuation
