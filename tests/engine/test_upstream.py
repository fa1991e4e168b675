"""The connections to a model server that sends anything: cuts, statuses, silences, disconnects. Each test is run on the
pool and on the connections to a process of ours."""

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from completion_stream import EXPECTED, HELLO, STREAM, USAGE, summary
from fake_upstream import (
    CUT,
    FOR_EVER,
    Answer,
    FakeUpstream,
    Step,
    byte_by_byte,
    delta,
    json_answer,
    sse,
)
from harness import run_async, until
from headrace.engine.openai.engine import OpenAIEngine
from headrace.engine.port import Chunk, ModelRequest, Text
from headrace.engine.upstream.port import Timeouts
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
from headrace.testing.engine_contract import collect, text_of


class Kind:
    loopback = False


@pytest.fixture(params=["pooled", "loopback"], scope="module", autouse=True)
def kind(request: pytest.FixtureRequest) -> Iterator[None]:
    Kind.loopback = request.param == "loopback"
    yield
    Kind.loopback = False


def opened(url: str, **settings: Any) -> OpenAIEngine:
    return OpenAIEngine(url, model="m", loopback=Kind.loopback, **settings)


async def answered(
    *steps: Step, request: ModelRequest = HELLO, timeouts: Timeouts | None = None, into: list[Chunk] | None = None
) -> list[Chunk]:
    """The chunks of one answer that consists of these steps."""
    got = [] if into is None else into
    async with (
        FakeUpstream(list(steps)) as upstream,
        opened(upstream.url, timeouts=timeouts) as engine,
    ):
        async with engine.stream(request) as chunks:
            async for chunk in chunks:
                got.append(chunk)
        return got


async def failed(answer: Answer, request: ModelRequest = HELLO) -> EngineError:
    async with FakeUpstream(answer) as upstream, opened(upstream.url) as engine:
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
        async with FakeUpstream(json_answer(document)) as up, opened(up.url) as engine:
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
        async with opened(url) as engine:
            with pytest.raises(EngineUnavailable) as caught:
                await collect(engine, HELLO)
            assert caught.value.retryable

    run_async(scenario())


def test_an_api_key_is_sent_and_never_shown() -> None:
    async def scenario() -> None:
        refusal = json_answer({"error": {"message": "no"}}, 401)
        async with FakeUpstream(refusal) as up, opened(up.url, api_key="s3cret") as engine:
            with pytest.raises(EngineRejected) as caught:
                await collect(engine, HELLO)
            assert up.asked[0].headers["authorization"] == "Bearer s3cret"
            assert "s3cret" not in f"{caught.value} {caught.value.hint} {engine!r}"

    run_async(scenario())


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "", "http://"])
def test_a_base_url_that_is_none_is_a_config_error(url: str) -> None:
    with pytest.raises(ConfigError):
        opened(url)


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
        async with server, opened(f"http://127.0.0.1:{port}", timeouts=timeouts) as engine:
            with pytest.raises(EngineTimeout, match="first token"):
                await collect(engine, HELLO)
            await gone.wait()

    run_async(scenario())


def test_silence_between_tokens_is_an_idle_timeout_and_closes_the_upstream() -> None:
    async def scenario() -> None:
        steps: list[Step] = [sse(delta(content="a")), FOR_EVER]
        timeouts = Timeouts(idle=0.1)
        async with FakeUpstream(steps) as up, opened(up.url, timeouts=timeouts) as engine:
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
        async with FakeUpstream(hanging, speaking) as up, opened(up.url) as engine:
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
        async with FakeUpstream(steps) as up, opened(up.url) as engine:
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
        async with upstream as up, opened(up.url) as engine, engine.stream(HELLO) as chunks:
            await anext(chunks)
            await asyncio.sleep(0.2)  # time in which an unbounded reader would have read all 24 MB
            assert up.open_now == 1
            rest = [chunk async for chunk in chunks]
            assert len(rest) == 400

    run_async(scenario())


def test_a_new_connection_that_closes_without_an_answer_is_unavailable_and_asked_once() -> None:
    async def scenario() -> None:
        async with FakeUpstream(Answer([], status=0)) as up, opened(up.url) as engine:
            with pytest.raises(EngineUnavailable):
                await collect(engine, HELLO)
            assert len(up.asked) == 1

    run_async(scenario())


def test_a_hundred_streams_at_once_have_a_connection_each() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()
        async with FakeUpstream([gate, STREAM]) as up, opened(up.url) as engine:
            readers = [asyncio.ensure_future(collect(engine, HELLO)) for _ in range(150)]
            await until(lambda: up.open_now == 150)
            gate.set()
            assert {summary(await reader) for reader in readers} == {EXPECTED}

    run_async(scenario())


def test_closing_the_engine_ends_the_answers_that_are_being_read() -> None:
    async def scenario() -> None:
        async with FakeUpstream(choose=lambda _: Answer([sse(delta(content="a")), FOR_EVER])) as upstream:
            engine = opened(upstream.url)
            await engine.__aenter__()
            async with engine.stream(HELLO) as chunks:
                assert await anext(chunks) == Text("a")
                reading = asyncio.ensure_future(anext(chunks))
                await asyncio.sleep(0)
                await engine.__aexit__()
                with pytest.raises(EngineDied):
                    await reading

    run_async(scenario(), deadline=10)


def test_embeddings_come_in_the_order_of_the_texts() -> None:
    async def scenario() -> None:
        rows = [{"index": 1, "embedding": [0.5]}, {"index": 0, "embedding": [1.5]}]
        async with FakeUpstream(json_answer({"data": rows})) as up, opened(up.url) as engine:
            assert await engine.embed(["a", "b"]) == [[1.5], [0.5]]
            with pytest.raises(EngineProtocol, match="2 embeddings for 1"):
                await engine.embed(["a"])

    run_async(scenario())
