"""The scripted engine keeps its script, its rate and its books."""

import asyncio

import pytest

from harness import run_async, until
from headrace.engine.port import Chunk, Finish, ModelRequest, Text, ToolCallPart
from headrace.engine.scripted import Deltas, Hang, Pause, ScriptedEngine
from headrace.errors import EngineDied, EngineRejected
from headrace.messages import Message

HELLO = ModelRequest(messages=(Message(role="user", content="hello there"),))


async def collect(
    engine: ScriptedEngine, request: ModelRequest = HELLO, into: list[Chunk] | None = None
) -> list[Chunk]:
    got = [] if into is None else into
    async with engine.stream(request) as chunks:
        async for chunk in chunks:
            got.append(chunk)
    return got


def text_of(chunks: list[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, Text))


def test_a_string_is_played_word_by_word_and_finished() -> None:
    chunks = run_async(collect(ScriptedEngine("one two  three")))
    assert text_of(chunks) == "one two  three"
    assert len(chunks) == 5
    last = chunks[-1]
    assert isinstance(last, Finish)
    assert (last.reason, last.usage.input_tokens, last.usage.output_tokens) == ("stop", 2, 4)


def test_a_script_with_a_call_finishes_with_tool_calls() -> None:
    chunks = run_async(collect(ScriptedEngine([ToolCallPart(index=0, call_id="c", name="clock", arguments="{}")])))
    last = chunks[-1]
    assert isinstance(last, Finish)
    assert last.reason == "tool_calls"


def test_scripts_answer_one_request_each_and_then_refuse() -> None:
    async def scenario() -> None:
        engine = ScriptedEngine(scripts=["first", "second"])
        assert text_of(await collect(engine)) == "first"
        assert text_of(await collect(engine)) == "second"
        with pytest.raises(EngineRejected, match="No script is left"):
            await collect(engine)
        assert engine.requests == [HELLO] * 3

    run_async(scenario())


def test_a_function_of_the_request_chooses_the_script() -> None:
    engine = ScriptedEngine(lambda request: request.messages[-1].content.upper())
    assert text_of(run_async(collect(engine))) == "HELLO THERE"


@pytest.mark.parametrize("cut", range(1, len("one two  three")))
def test_a_continued_answer_is_the_script_less_what_was_said(cut: int) -> None:
    said = "one two  three"[:cut]
    chunks = run_async(collect(ScriptedEngine("one two  three"), ModelRequest(prompt="x", continued=said)))
    assert said + text_of(chunks) == "one two  three"
    assert isinstance(chunks[-1], Finish)


def test_what_stood_in_the_script_before_the_cut_is_over_and_what_stands_after_it_comes() -> None:
    async def scenario() -> None:
        call = ToolCallPart(index=0, call_id="c", name="clock", arguments="{}")
        engine = ScriptedEngine([Hang(), Text("a"), EngineDied("over"), Text("b"), call, EngineDied("gone")])
        got: list[Chunk] = []
        with pytest.raises(EngineDied, match="gone"):
            await collect(engine, ModelRequest(prompt="x", continued="ab"), got)
        assert got == [call]

    run_async(scenario())


def test_a_stop_string_ends_the_script() -> None:
    request = ModelRequest(prompt="x", stop=("o t",))
    chunks = run_async(collect(ScriptedEngine("one two three"), request))
    assert text_of(chunks) == "one tw"
    assert isinstance(chunks[-1], Finish)


@pytest.mark.parametrize("said", ["other", "one two  three four"])
def test_a_script_that_does_not_begin_so_is_a_refusal(said: str) -> None:
    with pytest.raises(EngineRejected, match="does not begin"):
        run_async(collect(ScriptedEngine("one two  three"), ModelRequest(prompt="x", continued=said)))


def test_an_error_in_the_script_is_raised_after_the_chunks_before_it() -> None:
    async def scenario() -> None:
        engine = ScriptedEngine([Text("a"), Text("b"), EngineDied("gone")])
        got: list[Chunk] = []
        with pytest.raises(EngineDied, match="gone"):
            await collect(engine, into=got)
        assert got == [Text("a"), Text("b")]
        assert (engine.opened, engine.open_now) == (1, 0)

    run_async(scenario())


def test_a_hanging_stream_is_left_by_cancelling() -> None:
    async def scenario() -> None:
        engine = ScriptedEngine([Text("a"), Hang()])
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(collect(engine))
            await until(lambda: engine.open_now == 1)
            reader.cancel()
        assert (engine.opened, engine.open_now) == (1, 0)

    run_async(scenario())


@pytest.mark.parametrize("rate", [0.0, 2000.0])
def test_a_stream_leaves_room_for_others_between_chunks(rate: float) -> None:
    async def scenario() -> None:
        engine = ScriptedEngine(Deltas(500), rate=rate)
        ticks = 0
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(collect(engine))
            while not reader.done():
                ticks += 1
                await asyncio.sleep(0)
        assert ticks >= 500 / 32
        assert len(reader.result()) == 501

    run_async(scenario())


def test_pauses_and_the_first_token_delay_are_kept() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        await collect(ScriptedEngine([Text("a"), Pause(0.02), Text("b")], first_token=0.03))
        assert loop.time() - started >= 0.05

    run_async(scenario())


def test_the_same_seed_gives_the_same_gaps() -> None:
    first, second = (ScriptedEngine("a", jitter=0.5, seed=7) for _ in range(2))
    assert [first._random.random() for _ in range(5)] == [second._random.random() for _ in range(5)]


def test_leaving_before_the_first_chunk_closes_the_stream() -> None:
    async def scenario() -> None:
        engine = ScriptedEngine(Deltas(10), first_token=3600)
        async with engine.stream(HELLO):
            assert engine.open_now == 1
        assert engine.open_now == 0

    run_async(scenario())


@pytest.mark.parametrize("tokens", [0, -1])
def test_no_tokens_at_all_is_refused(tokens: int) -> None:
    async def scenario() -> None:
        with pytest.raises(EngineRejected, match="max_tokens"):
            await collect(ScriptedEngine("a"), ModelRequest(prompt="x", max_tokens=tokens))

    run_async(scenario())
