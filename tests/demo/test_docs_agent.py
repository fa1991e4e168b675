"""The demo agent on a scripted engine that keeps to its grammar, as the embedded one does."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bag_of_words import BagOfWords
from harness import run_async, until
from headrace.demo.agent import DocsAgent
from headrace.demo.grade import NOT_IN_DOCUMENTS
from headrace.demo.index import Found
from headrace.demo.library import Library
from headrace.engine.port import Capabilities, ModelRequest, Text, ToolCallPart
from headrace.engine.scripted import Hang, Script, ScriptedEngine
from headrace.errors import EngineRejected
from headrace.events import (
    Event,
    NodeFinished,
    NodeStarted,
    RunFinished,
    SourceCited,
    SteerReceived,
    TextDelta,
    TextRetracted,
    ToolCallEnded,
    ToolResult,
    TurnFinished,
    TurnStarted,
)
from recording import Recording, begin

PAGE = """# Tools

A tool has a timeout of thirty seconds.
A node starts when its needs are met.
The lock belongs to one process.
"""
SMALL = Capabilities(grammar=True, raw_prompt=True, continuation=True)


def obedient(request: ModelRequest) -> Script:
    """The first sentence that the grammar allows, after what has been said already."""
    found = re.search(r'"(?:[^"\\]|\\.)*"', request.grammar or "")
    assert found
    return (request.continued or "") + str(msgspec.json.decode(found.group()))


def small(script: Callable[[ModelRequest], Script] = obedient) -> ScriptedEngine:
    return ScriptedEngine(script, capabilities=SMALL)


async def opened(folder: Path, **more: Any) -> DocsAgent:
    (folder / "tools.md").write_text(PAGE)
    library = Library(documents=folder, cache=folder / "cache", embedder=BagOfWords)
    agent = DocsAgent(library=library, **more)
    await agent.prepare(lambda what, done, total: None)
    return agent


def ask(
    folder: Path, question: str, engine: ScriptedEngine | None = None, **more: Any
) -> tuple[Recording, RunFinished]:
    async def asking() -> tuple[Recording, RunFinished]:
        agent = await opened(folder)
        out, context = begin(engine or small(), question=question, **more)
        return out, await agent.run(context)

    return run_async(asking())


def test_an_answer_is_a_sentence_of_the_documents_and_cites_its_place(tmp_path: Path) -> None:
    out, finished = ask(tmp_path, "What timeout has a tool?")
    assert finished.output == "A tool has a timeout of thirty seconds."
    (source,) = out.of(SourceCited)
    assert source.path == "tools.md"
    assert source.span is not None
    assert PAGE[slice(*source.span)] == source.text == finished.output


def test_intent_and_retrieval_wait_for_nothing_and_the_answer_for_both(tmp_path: Path) -> None:
    out, _ = ask(tmp_path, "What timeout has a tool?")
    nodes = [e for e in out.events if isinstance(e, NodeStarted | NodeFinished)]
    needs = {e.node: e.needs for e in nodes if isinstance(e, NodeStarted)}
    assert needs == {"intent": (), "retrieve": (), "answer": ("intent", "retrieve")}
    assert [e.node for e in nodes if isinstance(e, NodeFinished)][-1] == "answer"
    assert {e.status for e in nodes if isinstance(e, NodeFinished)} == {"completed"}


def test_what_the_documents_do_not_answer_is_refused_without_a_source(tmp_path: Path) -> None:
    out, finished = ask(tmp_path, "Who painted the Mona Lisa?")
    assert finished.output == NOT_IN_DOCUMENTS["en"]
    assert out.of(SourceCited) == []


def test_arithmetic_is_computed_by_the_calculator_and_shown_as_a_tool_call(tmp_path: Path) -> None:
    out, finished = ask(tmp_path, "What is 6 * 7?")
    assert finished.output == "6 * 7 = 42"
    assert [e.result for e in out.of(ToolResult)] == [42]
    assert [e.finish_reason for e in out.of(TurnFinished)] == ["tool_calls", "stop"]


def test_a_tool_s_error_is_the_answer(tmp_path: Path) -> None:
    out, finished = ask(tmp_path, "What is 1 / 0?")
    assert "zero" in finished.output
    assert [e.error is not None for e in out.of(ToolResult)] == [True]


def test_the_time_comes_from_the_clock(tmp_path: Path) -> None:
    out, finished = ask(tmp_path, "What time is it in Tokyo?")
    assert [e.arguments for e in out.of(ToolCallEnded)] == [{"zone": "Asia/Tokyo"}]
    assert re.fullmatch(r"It is \d\d:\d\d on \w+day, [\d-]+, in the time zone Asia/Tokyo\.", finished.output)


class _NeverFinds(Library):
    async def search(self, question: str, *, limit: int = 4) -> Found:
        await asyncio.Event().wait()
        raise AssertionError


def test_a_late_retrieval_falls_back_to_what_the_model_knows_and_the_answer_says_so(tmp_path: Path) -> None:
    async def asking() -> tuple[Recording, RunFinished]:
        agent = DocsAgent(library=_NeverFinds(), retrieval_deadline=0.01)
        out, context = begin(small(), question="What timeout has a tool?")
        return out, await agent.run(context)

    out, finished = run_async(asking())
    assert "could not be searched in time" in finished.output
    assert {e.node: e.status for e in out.of(NodeFinished)}["retrieve"] == "fallback"


def test_an_engine_s_error_ends_the_run_as_itself(tmp_path: Path) -> None:
    with pytest.raises(EngineRejected, match="no"):
        ask(tmp_path, "What timeout has a tool?", small(lambda request: [EngineRejected("no")]))


@pytest.mark.parametrize("question", ["What timeout has a tool?", "What is 6 * 7?"])
def test_a_run_taken_over_after_any_record_says_the_same_and_repeats_no_finished_step(
    tmp_path: Path, question: str
) -> None:
    whole, finished = ask(tmp_path, question)
    for cut in range(1, len(whole.events)):
        earlier: list[Event] = whole.events[1 : cut + 1]
        out, again = ask(tmp_path, question, earlier=earlier)
        assert again.output == finished.output, cut
        state = out.state()
        assert state.text == finished.output, cut
        assert out.of(TextRetracted) == [], cut
        assert [turn.finish_reason is not None for turn in state.turns] == [True] * len(state.turns), cut
        assert len(out.of(NodeFinished)) == 3, cut
        assert len(out.of(ToolResult)) == len(whole.of(ToolResult)), cut
        assert len({s.id for s in out.of(SourceCited)}) == len(out.of(SourceCited)) == len(whole.of(SourceCited)), cut


def test_a_steer_is_a_further_question_with_nodes_of_its_own(tmp_path: Path) -> None:
    async def asking() -> tuple[Recording, RunFinished]:
        agent = await opened(tmp_path)
        out, context = begin(small(), question="What timeout has a tool?")
        context.steering.put_nowait(SteerReceived(steer_id="s1", text="The lock belongs to which process?"))
        return out, await agent.run(context)

    out, finished = run_async(asking())
    assert finished.output == "The lock belongs to one process."
    assert [e.node for e in out.of(NodeFinished)][-1] == "answer 2"
    assert len(out.of(TurnStarted)) == 2


def test_cancelling_closes_the_turn_and_leaves_the_engine(tmp_path: Path) -> None:
    engine = small(lambda request: [Text("A tool"), Hang()])

    async def cancelling() -> Recording:
        agent = await opened(tmp_path)
        out, context = begin(engine, question="What timeout has a tool?")
        async with asyncio.TaskGroup() as group:
            run = group.create_task(agent.run(context))
            await until(lambda: out.of(TextDelta))
            context.cancelling = True
            run.cancel()
        return out

    out = run_async(cancelling())
    assert [e.finish_reason for e in out.of(TurnFinished)] == ["cancelled"]
    assert engine.open_now == 0


def test_a_capable_engine_answers_freely_with_the_passages_before_it_and_calls_the_search_itself(
    tmp_path: Path,
) -> None:
    call = ToolCallPart(index=0, call_id="x", name="search_documents", arguments='{"query": "lock of a process"}')
    engine = ScriptedEngine(scripts=[[call], "One process has the lock."], capabilities=Capabilities(tools=True))
    out, finished = ask(tmp_path, "What timeout has a tool?", engine)
    assert finished.output == "One process has the lock."
    assert "[tools.md] Tools: A tool has a timeout of thirty seconds." in engine.requests[0].messages[-1].content
    assert {tool.name for tool in engine.requests[0].tools} == {"calculator", "clock", "search_documents"}
    assert "The lock belongs to one process." in {source.text for source in out.of(SourceCited)}


def test_a_free_run_taken_over_after_any_record_says_the_same(tmp_path: Path) -> None:
    def script(request: ModelRequest) -> Script:
        return "The answer."

    def engine() -> ScriptedEngine:
        return ScriptedEngine(script, capabilities=Capabilities(tools=True))

    whole, finished = ask(tmp_path, "What timeout has a tool?", engine())
    for cut in range(1, len(whole.events)):
        out, again = ask(tmp_path, "What timeout has a tool?", engine(), earlier=whole.events[1 : cut + 1])
        assert again.output == finished.output, cut
        assert out.state().text == finished.output, cut
