"""A cut sentence goes on at servers that can: what they were sent, and what llama.cpp had kept of it."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from fake_upstream import CUT, FOR_EVER, Answer, FakeUpstream, Step, delta, sse
from harness import run_async, until
from headrace.agent.continuation import Said
from headrace.agent.loop import Agent
from headrace.demo.sentences import rest_of_script
from headrace.demo.wording import TIE, from_sentences
from headrace.engine import models
from headrace.engine.llamacpp.engine import LlamaCppEngine
from headrace.engine.openai.engine import OpenAIEngine
from headrace.engine.port import Chunk, Engine, ModelRequest, Text
from headrace.engine.presets import CONTINUING
from headrace.events import Event, RunFinished, TextDelta, TextRetracted, TurnContinued, TurnFinished, TurnStarted
from headrace.messages import Message
from headrace.resilience.retry import Retry
from headrace.testing.engine_contract import collect, text_of
from recording import Recording, begin

AGENT = Agent("a", "Be brief.", retry=Retry(first=0.0))
QUESTION = "Tell me about the sea in three sentences."
GREEDY = {"temperature": 0.0, "max_tokens": 32}


async def whole(engine: Engine, earlier: tuple[Event, ...] = ()) -> tuple[Recording, RunFinished]:
    out, context = begin(engine, question=QUESTION, options=GREEDY, earlier=earlier)
    return out, await AGENT.run(context)


async def cut(engine: Engine, *, after: int) -> tuple[Event, ...]:
    """What a worker had recorded that was lost after so many pieces of text."""
    out, context = begin(engine, question=QUESTION, options=GREEDY)
    async with asyncio.TaskGroup() as group:
        working = group.create_task(AGENT.run(context))
        await until(lambda: len(out.of(TextDelta)) >= after, deadline=60)
        context.release()
        working.cancel()
    return tuple(out.events[1:])


def assert_one_unbroken_turn(out: Recording, text: str) -> None:
    assert "".join(piece.text for piece in out.of(TextDelta)) == text == out.state().text
    assert out.of(TextRetracted) == []
    assert len(out.of(TurnStarted)) == len(out.of(TurnFinished)) == len(out.of(TurnContinued)) == 1


# A compatible server


def pieces(*texts: str) -> list[Step]:
    return [sse(delta(content=text)) for text in texts]


END: list[Step] = [sse(delta("stop"), "[DONE]")]


@pytest.mark.parametrize("how", ["upstream dies", "worker dies"])
def test_a_server_is_sent_what_was_said_and_told_to_go_on_with_it(how: str) -> None:
    async def scenario() -> None:
        first = Answer([*pieces("The ", "sea — ", "海 "), CUT if how == "upstream dies" else FOR_EVER])
        async with (
            FakeUpstream(first, [*pieces("is ", "wide."), *END]) as upstream,
            OpenAIEngine(upstream.url, model="m", capabilities=CONTINUING) as engine,
        ):
            earlier = await cut(engine, after=3) if how == "worker dies" else ()
            out, finished = await whole(engine, earlier)
            assert finished.output == "The sea — 海 is wide."
            assert_one_unbroken_turn(out, finished.output)
            asked, further = (asked.body for asked in upstream.asked)
            assert further["messages"] == [*asked["messages"], {"role": "assistant", "content": "The sea — 海"}]
            assert (further["continue_final_message"], further["add_generation_prompt"]) == (True, False)
            assert further["max_tokens"] == asked["max_tokens"] - 3

    run_async(scenario())


# The embedded one


@asynccontextmanager
async def embedded(*, base: bool = False) -> AsyncIterator[LlamaCppEngine]:
    async with LlamaCppEngine(models.install("smollm2"), slots=1, context=512, base=base) as engine:
        yield engine


@pytest.mark.model
def test_another_worker_finishes_the_sentence_from_what_llamacpp_has_kept_and_says_what_one_would_have() -> None:
    async def scenario() -> None:
        async with embedded() as engine:
            _, uncut = await whole(engine)
            for after in (1, 7, 20):
                out, finished = await whole(engine, await cut(engine, after=after))
                assert finished.output == uncut.output
                assert_one_unbroken_turn(out, uncut.output)
                (turn,) = out.of(TurnFinished)
                assert turn.usage.cached_tokens > 20  # the prompt, and what was said
                assert turn.usage.output_tokens == uncut.usage.output_tokens
                assert turn.finish_reason == "length"

    run_async(scenario(), deadline=180)


@pytest.mark.model
def test_an_engine_killed_in_mid_sentence_comes_back_and_finishes_it() -> None:
    async def scenario() -> None:
        async with embedded() as engine:
            _, uncut = await whole(engine)
            out, context = begin(engine, question=QUESTION, options=GREEDY)
            async with asyncio.TaskGroup() as group:
                working = group.create_task(AGENT.run(context))
                await until(lambda: len(out.of(TextDelta)) >= 5, deadline=60)
                assert engine.pid is not None
                os.kill(engine.pid, signal.SIGKILL)
            assert working.result().output == uncut.output
            assert_one_unbroken_turn(out, uncut.output)
            assert engine.restarts == 1

    run_async(scenario(), deadline=180)


@pytest.mark.model
def test_a_llamacpp_server_elsewhere_is_recognised_and_goes_on_behind_a_blank_as_if_uncut() -> None:
    async def scenario() -> None:
        async with embedded() as engine:
            process = engine._process
            assert process is not None
            async with OpenAIEngine(process.url, model="m", api_key=process.api_key, capabilities=None) as elsewhere:
                request = ModelRequest(
                    messages=(Message(role="user", content=QUESTION),), temperature=0.0, max_tokens=20
                )
                uncut = text_of(await collect(elsewhere, request))
                behind_blanks = [uncut[: at + 1] for at, character in enumerate(uncut) if character == " "]
                for said in behind_blanks[::3]:
                    rest = await collect(elsewhere, msgspec.structs.replace(request, continued=said))
                    assert (said + text_of(rest)).startswith(uncut)

    run_async(scenario(), deadline=180)


def cuts(chunks: list[Chunk]) -> list[str]:
    """What was said at every second cut between two pieces."""
    texts = [chunk.text for chunk in chunks if isinstance(chunk, Text)]
    return ["".join(texts[:at]) for at in range(1, len(texts), 2)]


@pytest.mark.model
def test_a_framed_answer_goes_on_without_losing_a_blank() -> None:
    async def scenario() -> None:
        request = ModelRequest(messages=(Message(role="user", content=QUESTION),), temperature=0.0, max_tokens=20)
        async with embedded(base=True) as engine:
            uncut = await collect(engine, request)
            for said in cuts(uncut):
                rest = await collect(engine, msgspec.structs.replace(request, continued=said))
                joined = said + text_of(rest)
                assert joined.startswith(text_of(uncut)) or text_of(uncut).startswith(joined)

    run_async(scenario(), deadline=180)


@pytest.mark.model
def test_what_is_left_of_a_grammar_of_sentences_is_said_after_a_cut_at_any_character() -> None:
    sentences = ['The "lock" belongs to one process.', "It costs 3 € 😀."]
    script = from_sentences("Whose is the lock?", "en", sentences, TIE)
    request = ModelRequest(prompt=script.prompt, grammar=script.grammar, stop=("\n",), max_tokens=60, temperature=0.0)

    async def scenario() -> None:
        async with embedded() as engine:
            for cut_at in range(1, len(" ".join(sentences)), 4):
                said = Said(text=" ".join(sentences)[:cut_at], tokens=1)
                rest = rest_of_script(script, request, said)
                assert isinstance(rest, ModelRequest)
                assert said.text + text_of(await collect(engine, rest)) in (sentences[0], " ".join(sentences))

    run_async(scenario(), deadline=180)


@pytest.mark.model
def test_a_stop_is_held_back_until_it_is_whole_so_that_no_cut_falls_into_it() -> None:
    """What `continuation.py` relies on: in `continued` itself the server looks for no stop."""
    ask = (Message(role="user", content="Count."),)

    async def scenario() -> None:
        async with embedded() as engine:
            grammar = 'root ::= "alpha beta gamma delta"'
            held = ModelRequest(messages=ask, grammar=grammar, stop=("ta gamma d",), max_tokens=40)
            texts = [chunk.text for chunk in await collect(engine, held) if isinstance(chunk, Text)]
            assert "".join(texts) == "alpha be"
            across = ModelRequest(
                messages=ask, continued="alpha be", grammar='root ::= "ta gamma delta"', stop=("beta",), max_tokens=40
            )
            assert text_of(await collect(engine, across)) == "ta gamma delta"

    run_async(scenario(), deadline=180)
