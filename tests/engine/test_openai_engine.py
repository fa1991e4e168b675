"""The adapter against a server that sends anything: statuses, cuts, silences, disconnects."""

import asyncio
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_upstream import (
    CUT,
    FOR_EVER,
    Answer,
    Asked,
    FakeUpstream,
    Step,
    byte_by_byte,
    delta,
    json_answer,
    sse,
)
from harness import run_async, until
from headrace.engine.openai.engine import OpenAIEngine
from headrace.engine.port import Capabilities, Chunk, Finish, ModelRequest, Text, ToolCallPart
from headrace.engine.presets import CHAT, CONTINUING
from headrace.engine.refusals import engine_error
from headrace.engine.upstream import Timeouts
from headrace.errors import (
    ConfigError,
    ContextOverflow,
    EngineDied,
    EngineError,
    EngineOverloaded,
    EngineProtocol,
    EngineRejected,
    EngineTimeout,
    EngineUnavailable,
)
from headrace.messages import Message, ToolRequest, ToolSpec
from headrace.testing.engine_contract import collect, text_of

HELLO = ModelRequest(messages=(Message(role="user", content="Hello"),))
USAGE = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 6}}
CALL = {"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"a":"帮"}'}}
STREAM = (
    b": ping\n\nretry: 3000\n\n"
    + sse(delta(role="assistant", content=""), delta(reasoning_content="hm… "), delta(content="café "))
    + b"data:"
    + json.dumps(delta(content="帮 😀"), ensure_ascii=False).encode()
    + b"\r\n\r\n"
    + sse(delta(tool_calls=[CALL]), delta("stop"), USAGE)
    + b"data:[DONE]\n\n"
)
EXPECTED = ("café 帮 😀", '{"a":"帮"}', "tool_calls", 6)


def summary(chunks: list[Chunk]) -> tuple[str, str, str, int]:
    finish = chunks[-1]
    assert isinstance(finish, Finish)
    arguments = "".join(chunk.arguments for chunk in chunks if isinstance(chunk, ToolCallPart))
    return text_of(chunks), arguments, finish.reason, finish.usage.output_tokens


async def answered(
    *steps: Step, request: ModelRequest = HELLO, timeouts: Timeouts | None = None, into: list[Chunk] | None = None
) -> list[Chunk]:
    """The chunks of one answer that consists of these steps."""
    got = [] if into is None else into
    async with (
        FakeUpstream(list(steps)) as upstream,
        OpenAIEngine(upstream.url, model="m", timeouts=timeouts) as engine,
    ):
        async with engine.stream(request) as chunks:
            async for chunk in chunks:
                got.append(chunk)
        return got


async def failed(answer: Answer, request: ModelRequest = HELLO) -> EngineError:
    async with FakeUpstream(answer) as upstream, OpenAIEngine(upstream.url, model="m") as engine:
        with pytest.raises(EngineError) as caught:
            await collect(engine, request)
        await until(lambda: upstream.open_now == 0)
        return caught.value


# Bytes


def test_a_stream_in_one_piece_and_byte_by_byte_gives_the_same() -> None:
    assert summary(run_async(answered(STREAM))) == EXPECTED
    assert summary(run_async(answered(*byte_by_byte(STREAM)))) == EXPECTED


@given(st.lists(st.integers(1, len(STREAM) - 1), min_size=1, max_size=10))
@settings(max_examples=40, deadline=None)
def test_a_stream_cut_anywhere_gives_the_same(cuts: list[int]) -> None:
    edges = [0, *sorted(set(cuts)), len(STREAM)]
    pieces = [STREAM[a:b] for a, b in itertools.pairwise(edges)]
    assert summary(run_async(answered(*pieces))) == EXPECTED


def test_a_character_that_the_server_itself_cut_into_two_events_is_whole() -> None:
    first, second = (
        b'data: {"choices":[{"delta":{"content":"' + half + b'"}}]}\n\n' for half in (b"a\xe5", b"\xb8\xaeb")
    )
    assert text_of(run_async(answered(first, second, sse(delta("stop"), "[DONE]")))) == "a帮b"


def test_data_over_several_lines_and_fields_without_data_are_read_as_the_standard_says() -> None:
    spread = b'retry: 3000\n\nid: 7\nevent: message\n\ndata: {"choices":\r\ndata: [{"delta":{"content":"a"}}]}\r\n\r\n'
    assert text_of(run_async(answered(spread, sse(delta("stop"), "[DONE]")))) == "a"


def test_a_line_of_megabytes_passes() -> None:
    big = "x" * 3_000_000
    assert text_of(run_async(answered(sse(delta(content=big), delta("stop"), "[DONE]")))) == big


def test_a_stream_that_ends_without_done_but_finished_is_whole() -> None:
    assert text_of(run_async(answered(sse(delta(content="a"), delta("stop"))))) == "a"
    assert text_of(run_async(answered(sse(delta(content="a"), delta("stop")).rstrip()))) == "a"


def test_a_server_that_keeps_the_connection_after_done_does_not_delay_the_finish() -> None:
    assert text_of(run_async(answered(sse(delta(content="a"), delta("stop"), "[DONE]"), FOR_EVER))) == "a"


@pytest.mark.parametrize("tail", [(), (CUT,), (b'data: {"choi',), (b'data: {"choi', CUT)])
def test_a_stream_that_breaks_off_died_and_what_came_before_is_delivered(tail: tuple[Step, ...]) -> None:
    got: list[Chunk] = []
    with pytest.raises(EngineDied) as caught:
        run_async(answered(sse(delta(content="abc")), 0.01, *tail, into=got))
    assert got == [Text("abc")]
    assert caught.value.retryable


def test_an_error_inside_a_stream_comes_after_the_text_before_it() -> None:
    got: list[Chunk] = []
    error = {"error": {"message": "context size exceeded", "n_ctx": 2048}}
    with pytest.raises(ContextOverflow, match="context size exceeded"):
        run_async(answered(sse(delta(content="abc")), sse(error), into=got))
    assert got == [Text("abc")]


def test_an_error_as_the_first_event_after_a_ping_is_raised() -> None:
    with pytest.raises(EngineRejected, match="no"):
        run_async(answered(b": ping\n\n", b'event: error\ndata: {"error":{"code":400,"message":"no"}}\n\n'))


def test_an_error_document_in_place_of_a_stream_is_raised() -> None:
    error = run_async(failed(json_answer({"error": {"code": 400, "message": "exceeds the context size"}})))
    assert isinstance(error, ContextOverflow)


def test_a_server_that_does_not_stream_is_read_all_the_same() -> None:
    async def scenario() -> None:
        document = {"choices": [{"message": {"content": "All."}, "finish_reason": "stop"}], "usage": USAGE["usage"]}
        async with FakeUpstream(json_answer(document)) as up, OpenAIEngine(up.url, model="m") as engine:
            assert summary(await collect(engine, HELLO)) == ("All.", "", "stop", 6)

    run_async(scenario())


# Statuses


@pytest.mark.parametrize(
    ("status", "body", "meaning", "hint"),
    [
        (400, {"error": {"message": "bad"}}, EngineRejected, "refuses"),
        (422, {"detail": [{"msg": "bad"}]}, EngineRejected, "refuses"),
        (400, {"error": {"message": "maximum context length is 2048 tokens"}}, ContextOverflow, "Shorten"),
        (400, {"error": {"type": "exceed_context_size_error", "message": "no"}}, ContextOverflow, "Shorten"),
        (401, {"error": {"message": "who?"}}, EngineRejected, "API key"),
        (403, {"error": {"message": "no"}}, EngineRejected, "API key"),
        (404, {"error": {"message": "no model x"}}, EngineRejected, "model"),
        (408, {}, EngineTimeout, "gave up"),
        (429, {"error": {"message": "slow down"}}, EngineOverloaded, "later"),
        (500, {"error": {"message": "oops"}}, EngineUnavailable, "log"),
        (502, {}, EngineUnavailable, "log"),
        (503, {"error": {"message": "Loading model"}}, EngineUnavailable, "log"),
    ],
)
def test_each_http_status_is_an_error_of_its_own(
    status: int, body: object, meaning: type[EngineError], hint: str
) -> None:
    error = run_async(failed(json_answer(body, status)))
    assert type(error) is meaning
    assert hint in (error.hint or "")


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


@pytest.mark.parametrize(("sent", "seconds"), [("7", 7.0), ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0), ("soon", None)])
def test_retry_after_is_read_in_seconds_or_as_a_date(sent: str, seconds: float | None) -> None:
    error = run_async(failed(json_answer({}, 429, **{"Retry-After": sent})))
    assert isinstance(error, EngineOverloaded)
    assert error.retry_after == seconds


def test_a_page_of_html_is_a_protocol_error_that_names_the_base_url() -> None:
    error = run_async(failed(Answer([b"<html>hello</html>"], 200, {"Content-Type": "text/html"})))
    assert isinstance(error, EngineProtocol)
    assert "base URL" in (error.hint or "")


def test_an_error_page_that_is_no_json_is_quoted() -> None:
    error = run_async(failed(Answer([b"upstream is \xff down"], 502, {"Content-Type": "text/plain"})))
    assert "upstream is" in error.message


def test_nobody_at_the_address_is_unavailable() -> None:
    async def scenario() -> None:
        async with FakeUpstream(b"") as upstream:
            url = upstream.url
        async with OpenAIEngine(url, model="m") as engine:
            with pytest.raises(EngineUnavailable) as caught:
                await collect(engine, HELLO)
            assert caught.value.retryable

    run_async(scenario())


def test_an_api_key_is_sent_and_never_shown() -> None:
    async def scenario() -> None:
        refusal = json_answer({"error": {"message": "no"}}, 401)
        async with FakeUpstream(refusal) as up, OpenAIEngine(up.url, model="m", api_key="s3cret") as engine:
            with pytest.raises(EngineRejected) as caught:
                await collect(engine, HELLO)
            assert up.asked[0].headers["authorization"] == "Bearer s3cret"
            assert "s3cret" not in f"{caught.value} {caught.value.hint} {engine!r}"

    run_async(scenario())


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "", "http://"])
def test_a_base_url_that_is_none_is_a_config_error(url: str) -> None:
    with pytest.raises(ConfigError):
        OpenAIEngine(url, model="m")


# Time


def test_silence_before_the_first_token_names_the_first_token_and_pings_do_not_count() -> None:
    pings: list[Step] = [step for _ in range(100) for step in (b":\n\n", 0.02)]
    with pytest.raises(EngineTimeout, match="first token"):
        run_async(answered(*pings, timeouts=Timeouts(first_token=0.2)))


def test_a_server_that_never_answers_the_request_is_a_first_token_timeout() -> None:
    async def scenario() -> None:
        gone = asyncio.Event()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()
            await writer.wait_closed()
            gone.set()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        timeouts = Timeouts(first_token=0.1)
        async with server, OpenAIEngine(f"http://127.0.0.1:{port}", model="m", timeouts=timeouts) as engine:
            with pytest.raises(EngineTimeout, match="first token"):
                await collect(engine, HELLO)
            await gone.wait()

    run_async(scenario())


def test_silence_between_tokens_is_an_idle_timeout_and_closes_the_upstream() -> None:
    async def scenario() -> None:
        steps: list[Step] = [sse(delta(content="a")), FOR_EVER]
        timeouts = Timeouts(idle=0.1)
        async with FakeUpstream(steps) as up, OpenAIEngine(up.url, model="m", timeouts=timeouts) as engine:
            with pytest.raises(EngineTimeout, match="idle"):
                await collect(engine, HELLO)
            await until(lambda: up.open_now == 0)
            assert up.left == 1

    run_async(scenario())


def test_pings_between_tokens_keep_a_stream_alive() -> None:
    pings: list[Step] = [step for _ in range(20) for step in (b":\n\n", 0.05)]
    stream = [sse(delta(content="a")), *pings, sse(delta("stop"), "[DONE]")]
    assert text_of(run_async(answered(*stream, timeouts=Timeouts(idle=0.5)))) == "a"


def test_a_long_stream_may_last_longer_than_the_first_token_timeout() -> None:
    tokens: list[Step] = [step for _ in range(20) for step in (sse(delta(content="a")), 0.02)]
    stream = [*tokens, sse(delta("stop"), "[DONE]")]
    assert text_of(run_async(answered(*stream, timeouts=Timeouts(first_token=0.2)))) == "a" * 20


# Leaving


def test_leaving_closes_the_upstream_before_the_response_and_after_a_token() -> None:
    async def scenario() -> None:
        hanging: list[Step] = [FOR_EVER]
        speaking: list[Step] = [sse(delta(content="a")), FOR_EVER]
        async with FakeUpstream(hanging, speaking) as up, OpenAIEngine(up.url, model="m") as engine:
            for _ in range(2):
                reader = asyncio.ensure_future(collect(engine, HELLO))
                await until(lambda: up.open_now == 1)
                reader.cancel()
                await asyncio.wait([reader])
                await until(lambda: up.open_now == 0)
            assert up.left == 2

    run_async(scenario())


def test_leaving_while_another_task_reads_ends_that_read_with_an_error() -> None:
    async def scenario() -> None:
        steps: list[Step] = [sse(delta(content="a")), FOR_EVER]
        async with FakeUpstream(steps) as up, OpenAIEngine(up.url, model="m") as engine:
            async with engine.stream(HELLO) as chunks:
                await anext(chunks)
                reader = asyncio.ensure_future(anext(chunks))
                await asyncio.sleep(0)
            with pytest.raises(EngineDied):
                await reader
            await until(lambda: up.open_now == 0)

    run_async(scenario())


def test_a_slow_consumer_holds_the_upstream_back_instead_of_filling_memory() -> None:
    async def scenario() -> None:
        flood: list[Step] = [sse(delta(content="x" * 60_000))] * 400
        upstream = FakeUpstream([*flood, sse(delta("stop"), "[DONE]")])
        async with upstream as up, OpenAIEngine(up.url, model="m") as engine, engine.stream(HELLO) as chunks:
            await anext(chunks)
            await asyncio.sleep(0.2)  # time in which an unbounded reader would have read all 24 MB
            assert up.open_now == 1
            rest = [chunk async for chunk in chunks]
            assert len(rest) == 400

    run_async(scenario())


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


def test_a_new_connection_that_closes_without_an_answer_is_unavailable_and_asked_once() -> None:
    async def scenario() -> None:
        async with FakeUpstream(Answer([], status=0)) as up, OpenAIEngine(up.url, model="m") as engine:
            with pytest.raises(EngineUnavailable):
                await collect(engine, HELLO)
            assert len(up.asked) == 1

    run_async(scenario())


def test_a_hundred_streams_at_once_have_a_connection_each() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()
        async with FakeUpstream([gate, STREAM]) as up, OpenAIEngine(up.url, model="m") as engine:
            readers = [asyncio.ensure_future(collect(engine, HELLO)) for _ in range(150)]
            await until(lambda: up.open_now == 150)
            gate.set()
            assert {summary(await reader) for reader in readers} == {EXPECTED}

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


def test_embeddings_come_in_the_order_of_the_texts() -> None:
    async def scenario() -> None:
        rows = [{"index": 1, "embedding": [0.5]}, {"index": 0, "embedding": [1.5]}]
        async with FakeUpstream(json_answer({"data": rows})) as up, OpenAIEngine(up.url, model="m") as engine:
            assert await engine.embed(["a", "b"]) == [[1.5], [0.5]]
            with pytest.raises(EngineProtocol, match="2 embeddings for 1"):
                await engine.embed(["a"])

    run_async(scenario())


def test_closing_the_engine_ends_the_answers_that_are_being_read() -> None:
    async def scenario() -> None:
        async with FakeUpstream(choose=lambda _: Answer([sse(delta(content="a")), FOR_EVER])) as upstream:
            engine = OpenAIEngine(upstream.url, model="m")
            await engine.__aenter__()
            async with engine.stream(HELLO) as chunks:
                assert await anext(chunks) == Text("a")
                reading = asyncio.ensure_future(anext(chunks))
                await asyncio.sleep(0)
                await engine.__aexit__()
                with pytest.raises(EngineDied):
                    await reading

    run_async(scenario(), deadline=10)
