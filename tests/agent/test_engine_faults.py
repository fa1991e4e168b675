import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from harness import run_async
from headrace.agent.loop import Agent
from headrace.engine.port import Capabilities, Chunk, Finish, ModelRequest, Text, ToolCallPart
from headrace.engine.scripted import Hang, Script, ScriptedEngine
from headrace.errors import (
    DeadlineExceeded,
    EngineDied,
    EngineError,
    EngineOverloaded,
    EngineRejected,
    EngineUnavailable,
    StaleFence,
)
from headrace.events import Event, RunFinished, TextDelta, TextRetracted, ToolResult, TurnFinished, TurnStarted
from headrace.resilience.retry import Retry
from headrace.tools.function import tool
from recording import LiveEngine, Recording, assert_well_formed, begin, tool_call

AT_ONCE = Retry(attempts=3, first=0.0)

ran: list[int] = []


@tool(effect="none")
async def look(n: int = 0) -> int:
    """Look."""
    ran.append(n)
    return n


AGENT = Agent("a", tools=[look], retry=AT_ONCE)
CANNOT_GO_ON = Capabilities(tools=True)


def play(
    scripts: list[Script], agent: Agent = AGENT, capabilities: Capabilities = CANNOT_GO_ON, **more: Any
) -> tuple[Recording, RunFinished, ScriptedEngine]:
    async def run() -> tuple[Recording, RunFinished, ScriptedEngine]:
        ran.clear()
        engine = ScriptedEngine(scripts=scripts, capabilities=capabilities)
        out, context = begin(engine, **more)
        finished = await agent.run(context)
        assert_well_formed(out.events)
        assert engine.open_now == 0
        return out, finished, engine

    return run_async(run())


def fails(scripts: list[Script], kind: type[Exception], agent: Agent = AGENT) -> Recording:
    async def run() -> Recording:
        out, context = begin(ScriptedEngine(scripts=scripts, capabilities=CANNOT_GO_ON))
        with pytest.raises(kind):
            await agent.run(context)
        assert_well_formed(out.events)
        return out

    return run_async(run())


def test_an_engine_that_fails_before_the_first_token_is_asked_again_in_silence() -> None:
    out, finished, engine = play([[EngineUnavailable("down")], [EngineOverloaded("busy")], "hello"])
    assert finished.output == "hello"
    assert len(engine.requests) == 3
    assert out.of(TextRetracted) == []
    assert len(out.of(TurnStarted)) == 1
    assert len({request.request_id for request in engine.requests}) == 3


def test_after_the_first_token_what_was_said_is_retracted_and_said_again() -> None:
    out, finished, _ = play([[Text("Hel"), EngineDied("gone")], "Hello."])
    assert out.of(TextRetracted) == [TextRetracted(turn=1, reason="engine_died")]
    assert finished.output == "Hello."
    assert out.state().text == "Hello."


def test_the_last_failure_ends_the_run_and_keeps_what_was_said() -> None:
    out = fails([[EngineDied("1")], [Text("x"), EngineDied("2")], [Text("y"), EngineDied("3")]], EngineDied)
    assert out.of(TurnFinished)[0].finish_reason == "error"
    assert out.state().text == "y"


@pytest.mark.parametrize("error", [EngineRejected("no"), EngineError("what")])
def test_a_failure_that_would_repeat_itself_is_not_repeated(error: EngineError) -> None:
    out = fails([[Text("x"), error], "never asked"], type(error))
    assert out.of(TextRetracted) == []


def test_who_asks_for_more_patience_than_there_is_gets_none() -> None:
    fails([[EngineOverloaded("busy", retry_after=3600)], "never asked"], EngineOverloaded)


def test_a_turn_that_has_made_a_call_ends_where_it_broke_and_its_result_is_used() -> None:
    broken: list[Script] = [
        [
            Text("Let me "),
            tool_call(0, "look", '{"n":1}'),
            ToolCallPart(index=1, call_id="c1", name="look", arguments='{"n"'),
            EngineDied("gone"),
        ],
        "It is 1.",
    ]
    out, finished, engine = play(broken)
    assert ran == [1]
    assert out.of(TextRetracted) == []
    assert [turn.finish_reason for turn in out.of(TurnFinished)] == ["error", "stop"]
    assert [m.content for m in engine.requests[1].messages] == ["Hi", "Let me ", "1"]
    assert finished.output == "It is 1."


def test_a_call_of_a_failed_attempt_that_was_not_whole_is_closed_and_not_run() -> None:
    broken: list[Script] = [
        [ToolCallPart(index=0, call_id="c0", name="look", arguments='{"n"'), EngineDied("gone")],
        [tool_call(0, "look", '{"n":2}')],
        "ok",
    ]
    out, _, engine = play(broken)
    assert ran == [2]
    assert [r.error.code if r.error else r.result for r in out.of(ToolResult)] == ["tool_cancelled", 2]
    assert [m.call_id for m in engine.requests[2].messages if m.role == "tool"] == out.calls()[1:]


def test_a_stream_that_just_ends_is_a_broken_one() -> None:

    async def speak(request: ModelRequest) -> AsyncGenerator[Chunk, None]:
        yield Text("Hel")
        if request.request_id == "r1-1-2":
            yield Finish(reason="stop")

    async def run() -> Recording:
        out, context = begin(LiveEngine(speak))
        assert (await AGENT.run(context)).output == "Hel"
        return out

    assert len(run_async(run()).of(TextRetracted)) == 1


def test_the_runs_deadline_cuts_the_model() -> None:
    async def run() -> Recording:
        engine = ScriptedEngine([Text("a"), Hang()])
        out, context = begin(engine, deadline=asyncio.get_running_loop().time() + 0.05)
        with pytest.raises(DeadlineExceeded):
            await AGENT.run(context)
        assert engine.open_now == 0
        return out

    out = run_async(run())
    assert_well_formed(out.events)
    assert out.of(TurnFinished)[0].finish_reason == "error"


def test_a_run_whose_deadline_has_passed_asks_nobody() -> None:
    async def run() -> None:
        engine = ScriptedEngine("never")
        _, context = begin(engine, deadline=asyncio.get_running_loop().time() - 1)
        with pytest.raises(DeadlineExceeded):
            await AGENT.run(context)
        assert engine.requests == []

    run_async(run())


def test_a_lost_claim_ends_the_agent_with_that_error_and_no_task_left() -> None:
    class Loses(Recording):
        def emit(self, event: Event) -> None:
            if isinstance(event, ToolResult):
                raise StaleFence("another worker has it")
            super().emit(event)

    async def run() -> None:
        engine = ScriptedEngine([tool_call(0, "look"), tool_call(1, "look"), Text("and"), Hang()])
        plain, context = begin(engine)
        out = Loses(plain.events)
        context = type(context)(state=out.state(), history=(), out=out, engine=engine)
        with pytest.raises(StaleFence):
            await AGENT.run(context)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert engine.open_now == 0

    run_async(run())


def test_waits_grow_are_spread_and_never_undercut_what_was_asked() -> None:
    retry = Retry(attempts=4, first=1.0, factor=2.0, longest=3.0, patience=30.0)
    assert [retry.wait(n, dice=1.0) for n in (1, 2, 3, 4)] == [1.0, 2.0, 3.0, None]
    assert retry.wait(1, dice=0.0) == 0.5
    assert retry.wait(1, dice=0.0, asked=7.0) == 7.0
    assert retry.wait(1, dice=0.0, asked=31.0) is None


def test_deltas_of_a_retracted_attempt_are_not_in_the_answer() -> None:
    out, _, _ = play([[Text("wrong"), EngineDied("x")], "right"])
    assert [delta.text for delta in out.of(TextDelta)] == ["wrong", "right"]
    assert out.state().turns[0].text == "right"


def test_a_deadline_that_the_supervisor_enforces_too_still_closes_everything() -> None:
    @tool(effect="none")
    async def waits() -> None:
        await asyncio.Event().wait()

    async def run(script: Script) -> Recording:
        deadline = asyncio.get_running_loop().time() + 0.05
        out, context = begin(ScriptedEngine(script), deadline=deadline)
        with pytest.raises((TimeoutError, DeadlineExceeded)):
            async with asyncio.timeout_at(deadline):
                await Agent("a", tools=[waits]).run(context)
        return out

    scripts: list[Script] = [[Text("x"), Hang()], [tool_call(0, "waits"), Hang()], [tool_call(0, "waits")]]
    for script in scripts:
        assert_well_formed(run_async(run(script)).events)
