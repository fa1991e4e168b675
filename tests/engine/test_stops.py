"""Stop strings: found wherever the text is cut, and never shown."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_events import translate
from fake_upstream import FOR_EVER, FakeUpstream, Step, delta, sse
from harness import run_async, until
from headrace.engine.answer.stops import StopMatcher
from headrace.engine.openai.engine import OpenAIEngine
from headrace.engine.port import Chunk, Finish, ModelRequest, Text, Thinking, ToolCallPart
from headrace.messages import Message
from headrace.testing.engine_contract import collect, text_of


def shown(pieces: list[str], *stops: str) -> list[str]:
    matcher = StopMatcher(stops)
    return [matcher.feed(piece) for piece in pieces] + [matcher.end()]


def test_a_stop_over_several_tokens_ends_the_text_before_it() -> None:
    assert shown(["alpha ", "beta ", "gamma", " delta"], "beta gamma") == ["alpha ", "", "", "", ""]


def test_a_beginning_that_was_none_comes_once() -> None:
    assert shown([" Alice", "!"], "\n", "Alice:") == [" ", "Alice!", ""]
    assert shown([" Alice"], "\n", "Alice:") == [" ", "Alice"]


def test_the_text_before_a_stop_in_one_token_is_kept() -> None:
    assert shown(["?\n"], "\n") == ["?", ""]


def test_a_stop_that_ends_inside_a_token_cuts_the_token() -> None:
    assert shown(["in", " Paris"], "Pari") == ["in", " ", ""]


def test_text_that_cannot_begin_a_stop_is_not_held() -> None:
    assert shown(["one ", "two ", "✿"], "✿RESULT✿") == ["one ", "two ", "", "✿"]


def test_the_first_stop_in_the_text_counts_and_not_the_first_in_the_list() -> None:
    assert shown(["a STOP b END"], "END", "STOP") == ["a ", ""]


TEXT = "The answer is 帮 42. And so on 😀. And so forth."


@given(st.lists(st.integers(0, len(TEXT))), st.lists(st.sampled_from([TEXT[i : i + 9] for i in range(40)] + ["never"])))
def test_a_text_cut_anywhere_ends_before_the_first_stop(cuts: list[int], stops: list[str]) -> None:
    edges = sorted({0, len(TEXT), *cuts})
    pieces = [TEXT[a:b] for a, b in itertools.pairwise(edges)]
    # All stops are equally long, so the first that is complete is the first in the text.
    ends = [TEXT.index(stop) for stop in stops if stop in TEXT]
    assert "".join(shown(pieces, *stops or ["never"])) == TEXT[: min(ends, default=len(TEXT))]


# In an answer


def test_an_answer_ends_at_its_stop_with_the_reason_stop_and_what_follows_is_not_read() -> None:
    late = delta(tool_calls=[{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}])
    chunks = translate(delta(content="alpha be"), delta(content="ta gamma"), late, stops=("beta",))
    assert chunks[:-1] == [Text("alpha ")]
    finish = chunks[-1]
    assert isinstance(finish, Finish)
    assert finish.reason == "stop"
    assert finish.usage.output_tokens == 1  # nobody has counted, but that much was seen


def test_a_stop_in_the_thinking_is_none_and_think_tags_are_found_beside_stops() -> None:
    chunks = translate(*(delta(content=c) for c in "<think>b,c</think>ab,c"), delta("stop"), stops=("b,c",))
    assert "".join(c.text for c in chunks if isinstance(c, Thinking)) == "b,c"
    assert text_of(chunks) == "a"


def test_what_is_held_comes_before_a_call_and_at_the_end() -> None:
    call = delta(tool_calls=[{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}])
    chunks = translate(delta(content="a ST"), call, delta("stop"), stops=("STOP",))
    assert [type(chunk) for chunk in chunks] == [Text, Text, ToolCallPart, Finish]
    assert text_of(translate(delta(content="a ST"), delta("length"), stops=("STOP",))) == "a ST"


def test_a_stop_found_here_ends_the_generation_there() -> None:
    async def scenario() -> None:
        hello = (Message(role="user", content="Hello"),)
        steps: list[Step] = [sse(delta(content="one EN"), delta(content="D two")), FOR_EVER]
        async with FakeUpstream(steps) as up, OpenAIEngine(up.url, model="m") as engine:
            got: list[Chunk] = await collect(engine, ModelRequest(messages=hello, stop=("END",)))
            assert text_of(got) == "one "
            assert isinstance(got[-1], Finish)
            await until(lambda: up.open_now == 0)
            assert up.left == 1

    run_async(scenario())


@pytest.mark.parametrize("stops", [("a", "b", "c", "d", "e", "f")])
def test_stops_beyond_what_a_server_takes_are_found_all_the_same(stops: tuple[str, ...]) -> None:
    chunks = translate(delta(content="0123f45"), delta("stop"), stops=stops)
    assert text_of(chunks) == "0123"
