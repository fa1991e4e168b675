"""An answer that was cut, by a dying engine or a dying worker, goes on from what it has said."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec
import pytest

from harness import run_async
from headrace.agent.continuation import Said, go_on, rest_of
from headrace.agent.loop import Agent
from headrace.engine.port import Capabilities, Chunk, Finish, ModelRequest, Text
from headrace.engine.scripted import Script, ScriptedEngine
from headrace.errors import ContextOverflow, EngineDied, EngineError, EngineRejected
from headrace.events import (
    Event,
    RunFinished,
    SteerReceived,
    TextDelta,
    TextRetracted,
    ThinkingDelta,
    ToolCallStarted,
    TurnContinued,
    TurnFinished,
    TurnStarted,
)
from headrace.messages import Usage
from headrace.resilience.retry import Retry
from headrace.tools.function import tool
from recording import LiveEngine, Recording, assert_well_formed, begin, tool_call

SENTENCE = "The lock belongs to one process, 一个进程 😀 and no other."


@tool(effect="none")
async def look() -> str:
    """Look."""
    return "seen"


AGENT = Agent("a", tools=[look], retry=Retry(attempts=3, first=0.0))


def play(
    engine: ScriptedEngine | LiveEngine, earlier: Sequence[Event] = (), agent: Agent = AGENT, **options: Any
) -> tuple[Recording, RunFinished]:
    async def run() -> tuple[Recording, RunFinished]:
        out, context = begin(engine, earlier=earlier, options=options)
        finished = await agent.run(context)
        assert_well_formed(out.events)
        assert out.state().text == "".join(turn.text for turn in out.state().turns)
        return out, finished

    return run_async(run())


def begun(*texts: str, model: str = "scripted") -> list[Event]:
    """A turn that another worker had begun."""
    return [TurnStarted(turn=1, model=model, engine="scripted"), *(TextDelta(text=text) for text in texts)]


WHOLE, WHOLE_FINISHED = play(ScriptedEngine(SENTENCE))
TURN_ENDS = next(at for at, event in enumerate(WHOLE.events) if isinstance(event, TurnFinished))


@pytest.mark.parametrize("upto", range(3, TURN_ENDS + 1))
def test_taken_over_after_any_word_the_sentence_goes_on_and_nothing_is_taken_back(upto: int) -> None:
    engine = ScriptedEngine(SENTENCE)
    out, finished = play(engine, WHOLE.events[1:upto])
    assert finished.output == SENTENCE == "".join(delta.text for delta in out.of(TextDelta))
    assert engine.requests[0].continued == "".join(delta.text for delta in WHOLE.events[2:upto])  # type: ignore[attr-defined]
    assert out.of(TurnContinued) == [TurnContinued(turn=1, reason="recovered")]
    assert out.of(TextRetracted) == []
    assert len(out.of(TurnStarted)) == 1
    assert finished.usage.output_tokens == WHOLE_FINISHED.usage.output_tokens


@pytest.mark.parametrize("count", [1, 3, 600])
def test_an_engine_that_dies_in_mid_answer_is_asked_for_the_rest(count: int) -> None:
    words = [f"w{number} " for number in range(count)]
    said = "".join(words)
    engine = ScriptedEngine(scripts=[[*map(Text, words), EngineDied("gone")], said + "end"])
    out, finished = play(engine, max_tokens=1000)
    assert finished.output == said + "end" == "".join(delta.text for delta in out.of(TextDelta))
    assert [event.reason for event in out.of(TurnContinued)] == ["engine_died"]
    assert out.of(TextRetracted) == []
    assert (engine.requests[1].continued, engine.requests[1].max_tokens) == (said, 1000 - count)


def test_an_engine_that_dies_again_and_again_goes_on_each_time_until_patience_ends() -> None:
    async def speak(request: ModelRequest) -> AsyncGenerator[Chunk, None]:
        asked.append(request.continued)
        yield Text("more ")
        raise EngineDied("gone")

    asked: list[str | None] = []
    engine = LiveEngine(speak)
    engine.capabilities = Capabilities(continuation=True)

    async def run() -> Recording:
        out, context = begin(engine)
        with pytest.raises(EngineDied):
            await Agent("a", retry=AGENT.retry).run(context)
        return out

    out = run_async(run())
    assert asked == [None, "more ", "more more "]
    assert out.state().text == "more more more "
    assert out.of(TextRetracted) == []


@pytest.mark.parametrize("refusal", [EngineRejected("No beginnings here."), ContextOverflow("Too long.")])
def test_an_engine_that_refuses_to_go_on_is_asked_for_the_whole_answer(refusal: EngineError) -> None:
    def script(request: ModelRequest) -> Script:
        if request.continued is not None:
            return [Text("The lock"), refusal]
        return SENTENCE if len(engine.requests) > 1 else [Text("The lock"), EngineDied("gone")]

    engine = ScriptedEngine(script)
    out, finished = play(engine)
    assert finished.output == SENTENCE
    assert [request.continued for request in engine.requests] == [None, "The lock", None]
    assert [event.reason for event in out.of(TextRetracted)] == [refusal.code]
    assert finished.usage.output_tokens == WHOLE_FINISHED.usage.output_tokens


@pytest.mark.parametrize(
    ("earlier", "options"),
    [
        (begun("The "), {"json_schema": {"type": "object"}}),
        (begun("The "), {"grammar": "root ::= [a-z]*"}),
        (begun("The "), {"tool_choice": "required"}),
        (begun("The ", model="another"), {}),
        ([*begun(), ThinkingDelta(text="hm"), TextDelta(text="The ")], {}),
        ([*begun("The "), ToolCallStarted(call_id="c1", name="look", turn=1)], {}),
        ([*begun("A "), TextRetracted(turn=1, reason="engine_died"), TextDelta(text="The ")], {}),
        (begun("The lock\n"), {"stop": "\n\n"}),
    ],
    ids=["schema", "grammar", "forced call", "another model", "thought", "call begun", "retracted before", "in a stop"],
)
def test_what_cannot_go_on_is_taken_back_and_said_again(earlier: list[Event], options: dict[str, Any]) -> None:
    engine = ScriptedEngine(SENTENCE)
    out, finished = play(engine, earlier, **options)
    assert finished.output == SENTENCE
    assert engine.requests[0].continued is None
    assert out.of(TextRetracted)[-1] == TextRetracted(turn=1, reason="recovered")
    assert out.of(TurnContinued) == []


def test_a_call_that_follows_the_words_is_made_by_the_rest_of_the_answer() -> None:
    def script(request: ModelRequest) -> Script:
        if request.messages[-1].role == "tool":
            return "Seen."
        return [Text("Let me "), Text("look. "), tool_call(0, "look")]

    engine = ScriptedEngine(script)
    out, finished = play(engine, begun("Let me "))
    assert finished.output == "Seen."
    assert out.state().turns[0].text == "Let me look. "
    assert [m.content for m in engine.requests[1].messages] == ["Hi", "Let me look. ", "seen"]


def test_a_steer_that_came_as_the_worker_was_lost_interrupts_the_answer_there() -> None:
    async def run() -> tuple[Recording, RunFinished]:
        steer = SteerReceived(steer_id="s", text="In French.", mode="interrupt")
        out, context = begin(engine, earlier=[*begun("The ", "lock "), steer])
        context.steering.put_nowait(steer)
        return out, await AGENT.run(context)

    engine = ScriptedEngine("La serrure.")
    out, finished = run_async(run())
    assert_well_formed(out.events)
    assert finished.output == "La serrure."
    assert [message.content for message in engine.requests[0].messages] == ["Hi", "The lock ", "In French."]
    assert [event.finish_reason for event in out.of(TurnFinished)] == ["interrupted", "stop"]
    assert out.of(TextRetracted) == []
    assert out.of(TurnContinued) == []


def test_the_rest_gets_the_tokens_that_are_left_and_none_are_asked_for_when_none_are() -> None:
    engine = ScriptedEngine(SENTENCE)
    play(engine, begun("The ", "lock "), max_tokens=12)
    assert engine.requests[0].max_tokens == 10

    out, finished = play(ScriptedEngine(scripts=[]), begun("The ", "lock "), max_tokens=2)
    assert (finished.output, finished.finish_reason) == ("The lock ", "length")
    assert out.of(TurnFinished)[0].usage == Usage(output_tokens=2)
    assert out.of(TurnContinued) == []


def test_usage_counts_what_was_said_before_the_cut() -> None:
    rest: Script = [Text("b"), Finish(reason="stop", usage=Usage(input_tokens=9, output_tokens=4, cached_tokens=7))]
    engine = ScriptedEngine(scripts=[[Text("a"), Text("a"), EngineDied("gone")], [Text("aa"), *rest]])
    _, finished = play(engine)
    assert finished.usage == Usage(input_tokens=9, output_tokens=6, cached_tokens=7)


def test_a_stop_that_may_have_begun_is_recognised_and_others_are_not() -> None:
    def goes_on(text: str, *stop: str) -> bool:
        return go_on(ModelRequest(prompt="x", stop=stop), Said(text=text, tokens=1)) is not None

    assert not goes_on("so E", "END")
    assert not goes_on("so EN", "x", "END")
    assert goes_on("so ENT", "END")
    assert goes_on("so\n", "\n")
    assert goes_on("so E")


def test_the_rest_is_the_same_request_with_the_beginning_before_it() -> None:
    request = ModelRequest(prompt="x", max_tokens=5, temperature=0.3, stop=("#",))
    assert rest_of(request, Said(text="so", tokens=2)) == msgspec.structs.replace(request, continued="so", max_tokens=3)
    assert rest_of(request, Said(text="so", tokens=5)) == Finish(reason="length")
