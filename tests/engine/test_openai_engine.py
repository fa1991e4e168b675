"""The adapter against a server that sends anything: statuses, cuts, silences, disconnects."""

import json

import pytest

from completion_stream import EXPECTED, HELLO, STREAM, summary
from fake_upstream import (
    Answer,
    Asked,
    FakeUpstream,
    delta,
    json_answer,
    sse,
)
from harness import run_async, until
from headrace.engine.openai.engine import OpenAIEngine
from headrace.engine.port import Capabilities, ModelRequest
from headrace.engine.presets import CHAT, CONTINUING
from headrace.engine.refusals import engine_error
from headrace.errors import (
    ContextOverflow,
    EngineError,
    EngineOverloaded,
    EngineRejected,
    EngineUnavailable,
)
from headrace.messages import Message, ToolRequest, ToolSpec
from headrace.testing.engine_contract import collect, text_of

# What errors mean


TOO_LONG = [
    (400, "This model's maximum context length is 2048 tokens. However, you requested 2100 tokens."),  # OpenAI, vLLM
    (400, "The prompt (total length 3000) is longer than the maximum model length of 2048."),  # vLLM, in its engine
    (400, "The input (3000 tokens) is longer than the model's context length (2048 tokens)."),  # SGLang
    (400, "the request exceeds the available context size, try increasing it"),  # llama.cpp
    (400, "The number of tokens to keep from the initial prompt is greater than the context length."),  # LM Studio
    (422, "Input validation error: `inputs` must have less than 1024 tokens. Given: 3000"),  # TGI
    (422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 2048. Given: 3000"),  # TGI
    (400, "The input token count (1200000) exceeds the maximum number of tokens allowed (1048575)."),  # Gemini
    (400, "The sum of prompt length (3000) and query length exceeds max_num_tokens (2048)"),  # TensorRT-LLM
    (400, "prompt is too long: 210000 tokens > 200000 maximum"),  # Anthropic
    (400, "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000"),  # Anthropic
]


@pytest.mark.parametrize(("status", "message"), TOO_LONG)
def test_every_server_s_way_to_say_that_a_prompt_is_too_long_is_understood(status: int, message: str) -> None:
    assert isinstance(engine_error({"error": {"message": message}}, status=status), ContextOverflow)


@pytest.mark.parametrize(
    ("body", "status", "meaning"),
    [
        ([{"error": {"code": 400, "message": "no", "status": "INVALID_ARGUMENT"}}], 400, EngineRejected),  # Gemini
        ({"error": {"code": 503, "message": "The model is overloaded."}}, 503, EngineOverloaded),
        ({"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}, 503, EngineUnavailable),
        ({"error": "Request failed during generation", "error_type": "generation"}, None, EngineUnavailable),  # TGI
        ({"error": "Model is overloaded", "error_type": "overloaded"}, None, EngineOverloaded),  # TGI
        ({"error": {"message": "`inputs` are wrong"}}, 422, EngineRejected),
    ],
)
def test_a_servers_error_is_read_in_its_own_form(body: object, status: int | None, meaning: type[EngineError]) -> None:
    assert type(engine_error(body, status=status)) is meaning


# Connections


def test_a_connection_whose_answer_was_read_to_the_end_is_used_again() -> None:
    async def scenario() -> None:
        async with FakeUpstream(STREAM) as up, OpenAIEngine(up.url, model="m") as engine:
            for number in range(1, 6):
                await collect(engine, HELLO)
                await until(lambda: up.open_now == 0)
                assert len(up.asked) == number
            assert up.connections == 1

    run_async(scenario())


def test_a_connection_that_the_server_closed_meanwhile_is_replaced() -> None:
    async def scenario() -> None:
        closed = Answer([], status=0)
        async with FakeUpstream(STREAM, closed, STREAM) as up, OpenAIEngine(up.url, model="m") as engine:
            await collect(engine, HELLO)
            await until(lambda: up.open_now == 0)
            assert summary(await collect(engine, HELLO)) == EXPECTED
            assert (len(up.asked), up.connections) == (3, 2)

    run_async(scenario())


# What is sent


def sent_for(request: ModelRequest, capabilities: Capabilities = CHAT) -> tuple[str, dict[str, object]]:
    async def scenario() -> tuple[str, dict[str, object]]:
        async with (
            FakeUpstream(STREAM) as up,
            OpenAIEngine(up.url, model="small", capabilities=capabilities) as engine,
        ):
            await collect(engine, request)
            return up.asked[0].path, up.asked[0].body

    return run_async(scenario())


def test_a_conversation_with_calls_is_sent_by_the_book() -> None:
    request = ModelRequest(
        messages=(
            Message(role="system", content="Be brief."),
            Message(role="user", content="Time?"),
            Message(role="assistant", tool_calls=(ToolRequest(call_id="c", name="clock", arguments="{}"),)),
            Message(role="tool", call_id="c", content="12:00"),
        ),
        tools=(ToolSpec(name="clock", description="The time."),),
        tool_choice="clock",
        max_tokens=9,
        temperature=0.0,
        stop=("\n",),
        extra={"cache_prompt": True},
    )
    path, body = sent_for(request)
    function = {"name": "clock", "description": "The time.", "parameters": {"type": "object", "properties": {}}}
    call = {"id": "c", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    assert path == "/v1/chat/completions"
    assert body == {
        "model": "small",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Time?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "12:00", "tool_call_id": "c"},
        ],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "clock"}},
        "max_tokens": 9,
        "temperature": 0.0,
        "stop": ["\n"],
        "cache_prompt": True,
    }


def test_a_raw_prompt_goes_to_completions_where_the_engine_can() -> None:
    path, body = sent_for(ModelRequest(prompt="Once"), Capabilities(raw_prompt=True))
    assert (path, body["prompt"]) == ("/v1/completions", "Once")
    assert "messages" not in body


def test_the_beginning_of_an_answer_is_the_last_message_or_the_end_of_the_prompt() -> None:
    ask = {"role": "user", "content": "Hello"}
    _, body = sent_for(ModelRequest(messages=HELLO.messages, continued="Well, "), CONTINUING)
    assert body["messages"] == [ask, {"role": "assistant", "content": "Well,"}]
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
    _, body = sent_for(ModelRequest(prompt="Once", continued=" upon"), CONTINUING)
    assert body["prompt"] == "Once upon"
    assert "continue_final_message" not in body
    _, body = sent_for(HELLO, CONTINUING)
    assert body["messages"] == [ask]
    assert "continue_final_message" not in body


@pytest.mark.parametrize(
    ("said", "sent", "rest", "joined"),
    [
        ("a ", "a", [" 300", " m"], "a 300 m"),  # the template trims: the blank is said again
        ("a ", "a", ["300"], "a 300"),
        ("End.\n\n", "End.", ["\n", "\n", "Next"], "End.\n\nNext"),
        ("End.\n\n", "End.", [" Next"], "End.\n\nNext"),  # the model has changed its mind
        ("x\n    ", "x", ["\n    ", "  return"], "x\n      return"),
        ("a", "a", [" b"], "a b"),
    ],
)
def test_blanks_at_the_cut_are_not_sent_and_stand_there_once(
    said: str, sent: str, rest: list[str], joined: str
) -> None:
    async def scenario() -> None:
        answer = [sse(*(delta(content=text) for text in rest), delta("stop"), "[DONE]")]
        async with (
            FakeUpstream(answer) as upstream,
            OpenAIEngine(upstream.url, model="m", capabilities=CONTINUING) as engine,
        ):
            chunks = await collect(engine, ModelRequest(messages=HELLO.messages, continued=said))
            assert upstream.asked[0].body["messages"][-1]["content"] == sent
            assert said + text_of(chunks) == joined

    run_async(scenario())


def test_an_answer_that_was_blanks_so_far_is_a_new_one() -> None:
    _, body = sent_for(ModelRequest(messages=HELLO.messages, continued="\n"), CONTINUING)
    assert body["messages"] == [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize(
    ("listing", "goes_on"),
    [
        (json_answer({"data": [{"id": "m", "owned_by": "vllm"}, {"id": "lora", "owned_by": "vllm"}]}), True),
        (json_answer({"data": [{"id": "m", "owned_by": "llamacpp"}]}), True),
        (json_answer({"data": [{"id": "m", "owned_by": "vllm"}, {"id": "gpt", "owned_by": "openai"}]}), False),
        (json_answer({"data": []}), False),
        (json_answer({"error": "no such path"}, 404), False),
        (Answer([b"<html>Bad gateway</html>"], 502, {"Content-Type": "text/html"}), False),
    ],
)
def test_a_server_that_says_what_it_is_is_known_by_that(listing: Answer, goes_on: bool) -> None:
    async def scenario() -> None:
        async with (
            FakeUpstream(choose=lambda asked: listing if asked.path == "/v1/models" else Answer([STREAM])) as upstream,
            OpenAIEngine(upstream.url, model="m", capabilities=None) as engine,
        ):
            assert engine.capabilities.continuation == goes_on
            await collect(engine, HELLO)

    run_async(scenario())


def test_a_server_that_is_not_up_yet_is_asked_again_before_an_answer_and_then_no_more() -> None:
    async def scenario() -> None:
        proxy_says = Answer([b"<html>Bad gateway</html>"], 502, {"Content-Type": "text/html"})
        listings = [proxy_says, json_answer({"data": [{"owned_by": "vllm"}]})]
        known: list[bool] = []

        def answer(asked: Asked) -> Answer:
            return listings.pop(0) if asked.path == "/v1/models" else Answer([STREAM])

        async with (
            FakeUpstream(choose=answer) as upstream,
            OpenAIEngine(upstream.url, model="m", capabilities=None) as engine,
        ):
            for _ in range(3):
                known.append(engine.capabilities.continuation)
                await collect(engine, HELLO)
        assert known == [False, True, True]
        assert listings == []

    run_async(scenario())


def test_openai_s_own_api_is_never_asked_to_go_on() -> None:
    async def scenario() -> None:
        async with FakeUpstream(b"") as upstream, OpenAIEngine(upstream.url, model="m") as engine:
            with pytest.raises(EngineRejected, match="beginning of an answer"):
                await collect(engine, ModelRequest(messages=HELLO.messages, continued="Well, "))
            assert upstream.asked == []

    run_async(scenario())


def test_arguments_that_a_model_got_wrong_are_sent_as_valid_json() -> None:
    wrong = ToolRequest(call_id="c", name="f", arguments='{"a":')
    request = ModelRequest(messages=(Message(role="assistant", tool_calls=(wrong,)), *HELLO.messages))
    _, body = sent_for(request)
    messages = body["messages"]
    assert isinstance(messages, list)
    assert json.loads(messages[0]["tool_calls"][0]["function"]["arguments"]) == {"invalid": '{"a":'}


def test_what_is_refused_here_is_never_sent() -> None:
    async def scenario() -> None:
        async with FakeUpstream(STREAM) as up, OpenAIEngine(up.url, model="m") as engine:
            for request in (
                ModelRequest(messages=HELLO.messages, max_tokens=0),
                ModelRequest(messages=HELLO.messages, grammar="root ::= x"),
                ModelRequest(prompt="raw"),
                ModelRequest(messages=(Message(role="user", content="\ud800"),)),
            ):
                with pytest.raises(EngineRejected):
                    await collect(engine, request)
            assert up.connections == 0

    run_async(scenario())
