"""Agents and tools that do what none should: their run ends, once, and nobody else notices."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from harness import run_async, until
from headrace import Agent, tool
from headrace.agent.port import RunContext
from headrace.engine.port import Text, ToolCallPart
from headrace.engine.scripted import ScriptedEngine
from headrace.errors import AgentFailed, StaleFence
from headrace.events import (
    CancelRequested,
    RunFinished,
    RunStarted,
    SourceCited,
    TextDelta,
    ThinkingDelta,
    ToolProgress,
    TurnFinished,
)
from headrace.messages import Timing
from serving import Caller, FunctionAgent, config, count, parse, read_until, running

DONE = RunFinished(status="completed")


class Unheard(BaseException):
    """What `except Exception` does not catch."""


def emits(*events: Any) -> Callable[[RunContext], Awaitable[RunFinished]]:
    async def run(context: RunContext) -> RunFinished:
        for event in events:
            context.emit(event)
        return DONE

    return run


def returns(value: Any) -> Callable[[RunContext], Awaitable[RunFinished]]:
    async def run(context: RunContext) -> RunFinished:
        return value  # type: ignore[no-any-return]

    return run


def raises(error: BaseException) -> Callable[[RunContext], Awaitable[RunFinished]]:
    async def run(context: RunContext) -> RunFinished:
        raise error

    return run


async def exits(context: RunContext) -> RunFinished:
    sys.exit(3)


async def awaits_what_was_cancelled(context: RunContext) -> RunFinished:
    waiting = asyncio.ensure_future(asyncio.Event().wait())
    waiting.cancel()
    await waiting
    return DONE


anything: Any = None

ODD = {
    "returns nothing": returns(None),
    "returns a text": returns("hello"),
    "returns another event": returns(TextDelta(text="x")),
    "returns a request": returns(CancelRequested()),
    "returns an unknown status": returns(RunFinished(status="done")),  # type: ignore[arg-type]
    "returns no output": returns(RunFinished(status="completed", output=anything)),
    "returns a lone surrogate": returns(RunFinished(status="completed", output="\ud800")),
    "emits its own end": emits(DONE),
    "emits its own end and goes on": emits(DONE, TextDelta(text="more")),
    "emits a start": emits(RunStarted(agent="x", thread_id="another", input=())),
    "emits a request": emits(CancelRequested()),
    "emits a text": emits("hello"),
    "emits a number as text": emits(TextDelta(text=5)),  # type: ignore[arg-type]
    "emits nothing as text": emits(ThinkingDelta(text=anything)),
    "emits half a character": emits(TextDelta(text="\ud83d")),
    "emits what is not JSON": emits(ToolProgress(call_id="c", data=object())),
    "emits a number as an id": emits(SourceCited(id=1, title="t")),  # type: ignore[arg-type]
    "emits an endless time": emits(TurnFinished(turn=1, finish_reason="x", timing=Timing(total_ms=float("inf")))),
    "raises what nobody catches": raises(Unheard("x")),
    "raises a group of that": raises(BaseExceptionGroup("g", [Unheard("x")])),
    "exits": exits,
    "is not cancelled and says so": raises(asyncio.CancelledError()),
    "awaits what was cancelled": awaits_what_was_cancelled,
    "raises an error with half a character": raises(AgentFailed("\ud800", hint="\udfff")),
    "raises an error without words": raises(AgentFailed(anything)),
    "raises an error of the log": raises(StaleFence("not mine")),
}


def test_an_agent_that_does_what_none_should_ends_its_own_run_once_and_the_store_stays_readable(tmp_path: Path) -> None:
    async def scenario() -> None:
        agents = [FunctionAgent(body, name) for name, body in ODD.items()]
        async with running(FunctionAgent(count), *agents, settings=config(tmp_path)) as caller:
            for name in ODD:
                events = await caller.events(f"/v1/runs/{await caller.start('x', agent=name)}/events")
                ends = [e for e in events if e["event"] in ("run.finished", "run.error")]
                assert [e["event"] for e in ends] == ["run.error"], (name, events)
                assert events[-1] == ends[0]
                assert "Traceback" not in str(ends[0])
            await stays_well(caller)
        async with running(FunctionAgent(count), *agents, settings=config(tmp_path)) as caller:
            await stays_well(caller)

    run_async(scenario())


async def stays_well(caller: Caller) -> None:
    assert (await caller.finished("3"))["output"] == "w0 w1 w2 "
    status, shown = await caller.get("/v1/runs?limit=1000")
    assert status == 200
    for row in shown["runs"]:
        assert (await caller.get(f"/v1/runs/{row['run_id']}"))[0] == 200
    await caller.server.log.tidy()  # type: ignore[attr-defined]


@pytest.mark.parametrize("error", [Unheard("x"), GeneratorExit(), SystemExit(1)], ids=repr)
def test_a_tool_that_raises_what_nobody_catches_has_failed_and_the_model_reads_it(error: BaseException) -> None:
    async def scenario() -> None:
        @tool
        async def bad() -> str:
            """Bad."""
            raise error

        engine = ScriptedEngine(scripts=[[ToolCallPart(index=0, name="bad", arguments="{}")], [Text("I see.")]])
        async with running(Agent(name="a", instructions="", engine=engine, tools=[bad])) as caller:
            state = await caller.finished("x")
            assert state["output"] == "I see."
            assert state["tool_calls"][0]["error"]["code"] == "tool_failed"

    run_async(scenario())


def test_a_storm_of_cancels_interrupts_an_agent_once_so_that_it_can_clean_up() -> None:
    async def scenario() -> None:
        entered, cleaning, finish = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def tidy(context: RunContext) -> RunFinished:
            entered.set()
            try:
                await asyncio.Event().wait()
            finally:
                cleaning.set()
                await finish.wait()
                context.emit(TextDelta(text="cleaned"))
            return DONE

        async with running(FunctionAgent(tidy)) as caller:
            run_id = await caller.start("x")
            await entered.wait()
            async with asyncio.TaskGroup() as storm:
                for _ in range(50):
                    storm.create_task(caller.post(f"/v1/runs/{run_id}/cancel"))
            await cleaning.wait()
            (work,) = caller.server.supervisor._places.active
            work.cancel()  # a request that was stored a tick later, as with durability `fsync`
            finish.set()
            events = await caller.events(f"/v1/runs/{run_id}/events")
            assert [e["text"] for e in events if e["event"] == "text.delta"] == ["cleaned"]
            assert (events[-1]["status"], events[-1]["output"]) == ("cancelled", "cleaned")

    run_async(scenario())


def test_a_thousand_steers_are_each_returned_or_applied_and_the_run_ends_once() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()

        async def waits(context: RunContext) -> RunFinished:
            await gate.wait()
            return DONE

        async with running(FunctionAgent(waits)) as caller:
            run_id = await caller.start("x")
            async with caller.stream(f"/v1/runs/{run_id}/events") as answer:
                for _ in range(20):
                    async with asyncio.TaskGroup() as storm:
                        for _ in range(50):
                            storm.create_task(caller.post(f"/v1/runs/{run_id}/steer", {"text": "é😀中"}))
                gate.set()
                events = parse(await read_until(answer, b"run.finished") + await answer.read())
            kinds = [e["event"] for e in events]
            assert kinds.count("steer.received") == kinds.count("steer.returned") == 1000
            assert kinds[-1] == "run.finished"
            await until(lambda: caller.server.supervisor.active == 0)

    run_async(scenario())
