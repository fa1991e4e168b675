"""The Messages API: what is sent, what its events mean, and what is kept for the next turn."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_upstream import FOR_EVER, Answer, FakeUpstream, Step, byte_by_byte, json_answer
from harness import run_async, until
from headrace.engine.anthropic.engine import AnthropicEngine
from headrace.engine.anthropic.events import MessageEvents
from headrace.engine.port import Chunk, Finish, ModelRequest, Text, Thinking, ToolCallPart
from headrace.errors import (
    ContextOverflow,
    EngineDied,
    EngineError,
    EngineOverloaded,
    EngineProtocol,
    EngineRejected,
    EngineUnavailable,
)
from headrace.messages import Message, ToolRequest, ToolSpec
from headrace.testing.engine_contract import collect, text_of

MODEL = "claude-haiku-4-5"
HELLO = ModelRequest(messages=(Message(role="user", content="Hello"),))
CLOCK = ToolSpec(name="clock", description="The time.")
CACHED = {"cache_control": {"type": "ephemeral"}}


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def block(index: int, kind: str, *deltas: dict[str, Any], **fields: Any) -> bytes:
    start = event("content_block_start", index=index, content_block={"type": kind, **fields})
    inside = b"".join(event("content_block_delta", index=index, delta=delta) for delta in deltas)
    return start + inside + event("content_block_stop", index=index)


def text(index: int, *pieces: str) -> bytes:
    return block(index, "text", *({"type": "text_delta", "text": piece} for piece in pieces), text="")


def thinking(index: int, thought: str, signature: str) -> bytes:
    deltas = [{"type": "thinking_delta", "thinking": thought}, {"type": "signature_delta", "signature": signature}]
    return block(index, "thinking", *deltas, thinking="", signature="")


def call(index: int, name: str, *fragments: str) -> bytes:
    deltas = [{"type": "input_json_delta", "partial_json": fragment} for fragment in fragments]
    return block(index, "tool_use", *deltas, id=f"toolu_{index}", name=name, input={})


def start(**usage: int) -> bytes:
    return event("message_start", message={"usage": {"input_tokens": 5, "output_tokens": 1, **usage}})


def end(reason: str = "end_turn", **usage: Any) -> bytes:
    delta = event("message_delta", delta={"stop_reason": reason}, usage={"output_tokens": 6, **usage})
    return delta + event("message_stop")


def read(*data: bytes) -> list[Chunk]:
    reader = MessageEvents()
    chunks: list[Chunk] = []
    for part in b"".join(data).decode().split("\n\n"):
        for line in part.split("\n"):
            if line.startswith("data: "):
                chunks += reader.feed(line[6:])
    return chunks + reader.finish()


def finish_of(chunks: list[Chunk]) -> Finish:
    assert isinstance(chunks[-1], Finish)
    return chunks[-1]


async def asked(*requests: ModelRequest, answers: list[bytes], **settings: Any) -> list[dict[str, Any]]:
    """The bodies that were sent for these requests."""
    async with FakeUpstream(*answers) as up, AnthropicEngine(up.url, model=MODEL, **settings) as engine:
        for request in requests:
            await collect(engine, request)
        assert {asked.path for asked in up.asked} == {"/v1/messages"}
        return [asked.body for asked in up.asked]


def sent(request: ModelRequest, **settings: Any) -> dict[str, Any]:
    (body,) = run_async(asked(request, answers=[start() + text(0, "a") + end()], **settings))
    return body


# What is sent


def test_a_conversation_is_sent_by_the_book_and_its_beginning_is_marked_for_the_cache() -> None:
    request = ModelRequest(
        messages=(
            Message(role="system", content="Be brief."),
            Message(role="user", content="Time?"),
            Message(
                role="assistant",
                content="I look.",
                tool_calls=(
                    ToolRequest(call_id="a", name="clock", arguments="{}"),
                    ToolRequest(call_id="b:1", name="clock", arguments='{"zone":"CET"}'),
                ),
            ),
            Message(role="tool", call_id="a", content="12:00"),
            Message(role="tool", call_id="b:1", content="13:00"),
            Message(role="system", content="Today is Sunday."),
        ),
        tools=(CLOCK,),
        tool_choice="required",
        temperature=0.5,
        top_k=3,
        stop=("END",),
        json_schema={"type": "object"},
    )
    assert sent(request) == {
        "model": MODEL,
        "max_tokens": 4096,
        "stream": True,
        "system": [{"type": "text", "text": "Be brief.", **CACHED}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Time?"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "a", "name": "clock", "input": {}},
                    {"type": "tool_use", "id": "b_1", "name": "clock", "input": {"zone": "CET"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "a", "content": "12:00"},
                    {"type": "tool_result", "tool_use_id": "b_1", "content": "13:00", **CACHED},
                    {"type": "text", "text": "Today is Sunday."},
                ],
            },
        ],
        "temperature": 0.5,
        "top_k": 3,
        "stop_sequences": ["END"],
        "tools": [
            {
                "name": "clock",
                "description": "The time.",
                "input_schema": {"type": "object", "properties": {}},
            }
        ],
        "tool_choice": {"type": "any"},
        "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
    }


@pytest.mark.parametrize(
    ("choice", "spelled"),
    [("auto", {"type": "auto"}), ("none", {"type": "none"}), ("clock", {"type": "tool", "name": "clock"})],
)
def test_every_tool_choice_has_its_spelling(choice: str, spelled: dict[str, str]) -> None:
    body = sent(msgspec.structs.replace(HELLO, tools=(CLOCK,), tool_choice=choice))
    assert body["tool_choice"] == spelled
    assert body["tools"][-1]["cache_control"] == CACHED["cache_control"]  # there is no system text to carry the mark


def test_arguments_that_are_no_object_are_sent_as_one_and_empty_texts_are_not_sent() -> None:
    wrong = (ToolRequest(call_id="a", name="f", arguments='{"x":'), ToolRequest(call_id="b", name="f", arguments="[1]"))
    messages = (*HELLO.messages, Message(role="assistant", tool_calls=wrong), Message(role="user", content="Well?"))
    blocks = sent(ModelRequest(messages=messages))["messages"][1]["content"]
    assert [b["input"] for b in blocks] == [{"invalid": '{"x":'}, {"invalid": "[1]"}]


def test_the_key_and_the_version_are_headers_and_the_key_is_never_shown() -> None:
    async def scenario() -> None:
        refusal = json_answer({"type": "error", "error": {"type": "authentication_error", "message": "no"}}, 401)
        async with FakeUpstream(refusal) as up, AnthropicEngine(up.url, model=MODEL, api_key="s3cret") as engine:
            with pytest.raises(EngineRejected) as caught:
                await collect(engine, HELLO)
            headers = up.asked[0].headers
            assert (headers["x-api-key"], headers["anthropic-version"]) == ("s3cret", "2023-06-01")
            assert "authorization" not in headers
            assert "s3cret" not in f"{caught.value} {caught.value.hint} {engine!r}"

    run_async(scenario())


def test_an_answer_goes_on_by_prefill_without_the_blanks_at_the_cut() -> None:
    async def scenario() -> None:
        answer = start() + text(0, " ", "world") + end()
        async with FakeUpstream(answer) as up, AnthropicEngine(up.url, model=MODEL) as engine:
            chunks = await collect(engine, msgspec.structs.replace(HELLO, continued="Hello "))
            assert up.asked[0].body["messages"][-1] == {"role": "assistant", "content": "Hello"}
            assert text_of(chunks) == "world"

    run_async(scenario())


SAMPLING = {"temperature", "top_p", "top_k", "stop"}


@pytest.mark.parametrize(
    ("model", "sampled", "goes_on"),
    [
        ("claude-2.1", True, True),
        ("claude-3-haiku-20240307", True, True),
        ("claude-3-7-sonnet-latest", True, True),
        ("claude-opus-4-20250514", True, True),
        ("claude-sonnet-4-5-20250929", True, True),
        ("claude-haiku-4-5", True, True),
        ("anthropic.claude-opus-4-6-v1", True, False),
        ("claude-sonnet-4-6", True, False),
        ("claude-opus-4-7", False, False),
        ("claude-opus-5", False, False),
        ("claude-haiku-5-5", False, False),
        ("claude-mythos-preview", False, False),
        ("something else", False, False),
    ],
)
def test_what_a_model_takes_is_known_by_its_generation(model: str, sampled: bool, goes_on: bool) -> None:
    able = AnthropicEngine(model=model).capabilities
    assert able.sampling == (SAMPLING if sampled else {"stop"})
    assert able.continuation == goes_on
    assert AnthropicEngine(model=model, continuation=True).capabilities.continuation


def test_a_model_that_thinks_takes_no_sampling_no_forced_call_and_no_beginning() -> None:
    able = AnthropicEngine(model=MODEL, thinking=THINKS).capabilities
    assert able.sampling == {"stop"}
    assert able.tool_choice == {"auto", "none"}
    assert not able.continuation


# What was thought

THINKS = {"type": "enabled", "budget_tokens": 1024}
CALLED = start() + thinking(0, "Look first.", "sig") + text(1, "I look.") + call(2, "clock", '{"zone": "CET"}')
CALLED += end("tool_use")
ANSWERED = start() + text(0, "Noon.") + end()


def after_the_call(session: str = "thread") -> ModelRequest:
    """The next turn, as the conversation shows it: another call id, other blanks in the arguments."""
    called = ToolRequest(call_id="call_ours", name="clock", arguments='{"zone":"CET"}')
    return ModelRequest(
        messages=(
            *HELLO.messages,
            Message(role="assistant", content="I look.", tool_calls=(called,)),
            Message(role="tool", call_id="call_ours", content="12:00"),
        ),
        tools=(CLOCK,),
        session=session,
    )


def first_turn(session: str = "thread") -> ModelRequest:
    return msgspec.structs.replace(HELLO, tools=(CLOCK,), session=session)


def test_the_thinking_behind_a_call_goes_back_with_its_result_to_the_letter() -> None:
    first, second = run_async(asked(first_turn(), after_the_call(), answers=[CALLED, ANSWERED], thinking=THINKS))
    assert first["thinking"] == second["thinking"] == THINKS
    assert second["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "Look first.", "signature": "sig"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "call_ours", "name": "clock", "input": {"zone": "CET"}},
    ]


def test_redacted_thinking_goes_back_as_it_came() -> None:
    secret = block(0, "redacted_thinking", data="opaque")
    called = start() + secret + text(1, "I look.") + call(2, "clock", '{"zone": "CET"}') + end("tool_use")
    _, second = run_async(asked(first_turn(), after_the_call(), answers=[called, ANSWERED], thinking=THINKS))
    assert second["messages"][1]["content"][0] == {"type": "redacted_thinking", "data": "opaque"}


def test_a_turn_whose_thinking_is_gone_or_somebody_elses_goes_on_without_thinking() -> None:
    (alone,) = run_async(asked(after_the_call(), answers=[ANSWERED], thinking=THINKS))
    assert alone["thinking"] == {"type": "disabled"}
    _, other = run_async(
        asked(first_turn("mine"), after_the_call("yours"), answers=[CALLED, ANSWERED], thinking=THINKS)
    )
    assert other["thinking"] == {"type": "disabled"}
    (adaptive,) = run_async(asked(after_the_call(), answers=[ANSWERED], thinking={"type": "adaptive"}))
    assert adaptive["thinking"] == {"type": "adaptive"}  # it decides for itself, and needs nothing
    assert other["messages"][1]["content"][0]["type"] == "text"


# What the events mean


def test_text_thinking_and_calls_come_in_their_order_and_calls_are_counted_from_0() -> None:
    chunks = read(start(), thinking(0, "Hm.", "s"), text(1, "a", "b"), call(2, "f", '{"x"', ":1}"), call(3, "g"), end())
    assert chunks[:-1] == [
        Thinking("Hm."),
        Text("a"),
        Text("b"),
        ToolCallPart(index=0, call_id="toolu_2", name="f"),
        ToolCallPart(index=0, arguments='{"x"'),
        ToolCallPart(index=0, arguments=":1}"),
        ToolCallPart(index=1, call_id="toolu_3", name="g"),
        ToolCallPart(index=1, arguments="{}"),
    ]
    assert finish_of(chunks).reason == "tool_calls"


def test_blocks_that_come_in_turns_are_told_apart_by_their_number() -> None:
    def fragment(index: int, json_text: str) -> bytes:
        return event("content_block_delta", index=index, delta={"type": "input_json_delta", "partial_json": json_text})

    starts = [
        event("content_block_start", index=i, content_block={"type": "tool_use", "id": f"t{i}", "name": f"f{i}"})
        for i in (0, 1)
    ]
    chunks = read(start(), *starts, fragment(1, "{"), fragment(0, "[1"), fragment(1, "}"), fragment(0, "]"), end())
    arguments = ["".join(c.arguments for c in chunks if isinstance(c, ToolCallPart) and c.index == i) for i in (0, 1)]
    assert arguments == ["[1]", "{}"]


def test_an_input_that_comes_whole_is_taken_whole() -> None:
    whole = block(0, "tool_use", id="t", name="f", input={"x": 1})
    assert read(start(), whole, end())[0] == ToolCallPart(index=0, call_id="t", name="f", arguments='{"x":1}')


def test_blocks_and_events_that_are_not_known_are_skipped() -> None:
    foreign = block(0, "server_tool_use", {"type": "input_json_delta", "partial_json": "{}"}, id="s", name="search")
    found = block(1, "web_search_tool_result", content=[])
    cited = block(2, "text", {"type": "citations_delta", "citation": {}}, {"type": "text_delta", "text": "a"}, text="")
    chunks = read(start(), event("ping"), event("something_new", x=1), foreign, found, cited, end())
    assert chunks[:-1] == [Text("a")]
    assert finish_of(chunks).reason == "stop"


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("pause_turn", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content_filter"),
    ],
)
def test_every_stop_reason_has_a_meaning(sent: str, meant: str) -> None:
    assert finish_of(read(start(), text(0, "a"), end(sent))).reason == meant


def test_usage_counts_what_was_read_from_and_written_to_the_cache_as_input() -> None:
    usage = finish_of(
        read(
            start(cache_read_input_tokens=300, cache_creation_input_tokens=20),
            text(0, "a"),
            end(output_tokens_details={"thinking_tokens": 4}),
        )
    ).usage
    assert (usage.input_tokens, usage.cached_tokens) == (325, 300)
    assert (usage.output_tokens, usage.reasoning_tokens) == (6, 4)


# How it ends otherwise


def fails(answer: bytes | Answer | list[Step]) -> tuple[list[Chunk], EngineError]:
    async def scenario() -> tuple[list[Chunk], EngineError]:
        got: list[Chunk] = []
        async with FakeUpstream(answer) as up, AnthropicEngine(up.url, model=MODEL) as engine:
            try:
                async with engine.stream(HELLO) as chunks:
                    async for chunk in chunks:
                        got.append(chunk)  # noqa: PERF401  (what came before the error counts)
            except EngineError as error:
                await until(lambda: up.open_now == 0)
                return got, error
            raise AssertionError(f"it was answered with {got}")

    return run_async(scenario())


@pytest.mark.parametrize(
    ("kind", "message", "meaning"),
    [
        ("overloaded_error", "Overloaded", EngineOverloaded),
        ("rate_limit_error", "slow down", EngineOverloaded),
        ("api_error", "Internal server error", EngineDied),
        ("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum", ContextOverflow),
        ("invalid_request_error", "no", EngineRejected),
    ],
)
def test_an_error_inside_a_stream_is_raised_by_its_meaning_after_the_text(
    kind: str, message: str, meaning: type[EngineError]
) -> None:
    begun = start() + event("content_block_start", index=0, content_block={"type": "text", "text": "abc"})
    got, error = fails(begun + event("error", error={"type": kind, "message": message}))
    assert got == [Text("abc")]
    assert type(error) is meaning
    assert message in error.message


@pytest.mark.parametrize(
    ("status", "kind", "meaning"),
    [
        (400, "invalid_request_error", EngineRejected),
        (401, "authentication_error", EngineRejected),
        (404, "not_found_error", EngineRejected),
        (413, "request_too_large", EngineRejected),
        (429, "rate_limit_error", EngineOverloaded),
        (500, "api_error", EngineUnavailable),
        (529, "overloaded_error", EngineOverloaded),
    ],
)
def test_each_http_status_is_an_error_of_its_own(status: int, kind: str, meaning: type[EngineError]) -> None:
    _, error = fails(json_answer({"type": "error", "error": {"type": kind, "message": "so"}}, status))
    assert type(error) is meaning


@pytest.mark.parametrize("tail", [b"", b"event: message_del", event("content_block_stop", index=0)])
def test_a_stream_that_breaks_off_died(tail: bytes) -> None:
    got, error = fails(start() + text(0, "abc") + tail)
    assert got == [Text("abc")]
    assert type(error) is EngineDied


@pytest.mark.parametrize("data", [b"data: <html>\n\n", b"data: 42\n\n"])
def test_what_is_no_json_object_is_a_protocol_error(data: bytes) -> None:
    assert type(fails(data)[1]) is EngineProtocol


def test_a_call_without_a_name_is_a_protocol_error() -> None:
    with pytest.raises(EngineProtocol, match="never named"):
        read(start(), block(0, "tool_use", id="t"), end())


def test_a_stop_found_here_closes_the_stream() -> None:
    async def scenario() -> None:
        steps: list[Step] = [start() + text(0, "one EN", "D two"), FOR_EVER]
        async with FakeUpstream(steps) as up, AnthropicEngine(up.url, model=MODEL) as engine:
            chunks = await collect(engine, msgspec.structs.replace(HELLO, stop=("END",)))
            assert (text_of(chunks), finish_of(chunks).reason) == ("one ", "stop")
            await until(lambda: up.open_now == 0)
            assert up.left == 1

    run_async(scenario())


def test_a_stream_byte_by_byte_gives_the_same() -> None:
    async def scenario() -> None:
        stream = start() + text(0, "帮 😀", " café") + call(1, "f", '{"a":"帮"}') + end("tool_use")
        async with FakeUpstream(stream, byte_by_byte(stream)) as up, AnthropicEngine(up.url, model=MODEL) as engine:
            whole, cut = await collect(engine, HELLO), await collect(engine, HELLO)
            assert whole[:-1] == cut[:-1]

    run_async(scenario())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "text", "id"]), inner),
    max_leaves=8,
)


@given(JSON, st.sampled_from(["content_block_start", "content_block_delta", "message_delta", "message_start", "error"]))
def test_any_json_at_all_gives_chunks_or_one_of_our_errors(value: object, kind: str) -> None:
    reader = MessageEvents()
    for name in ("index", "delta", "content_block", "usage", "message", "error"):
        try:
            reader.feed(json.dumps({"type": kind, "index": 0, name: value}))
            reader.feed(json.dumps(value))
            reader.finish()
        except EngineError:
            pass
