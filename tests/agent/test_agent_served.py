"""The agent loop on a real log, behind a real server."""

import asyncio
from pathlib import Path
from typing import Any

from harness import run_async, until
from headrace.agent.loop import Agent
from headrace.engine.port import ModelRequest, Text
from headrace.engine.scripted import Hang, Script, ScriptedEngine
from headrace.tools.builtin import calculator
from headrace.tools.function import tool
from recording import tool_call
from serving import Caller, config, read_until, running


def answers(request: ModelRequest) -> list[str]:
    return [message.content for message in request.messages if message.role == "tool"]


async def until_run(caller: Caller, run_id: str, has: str) -> None:
    """Follow a run until its records show `has`."""
    async with asyncio.timeout(10), caller.stream(f"/v1/runs/{run_id}/events") as answer:
        await read_until(answer, has.encode())


async def ended(caller: Caller, run_id: str) -> dict[str, Any]:
    """A run's state, once it has ended."""
    await caller.events(f"/v1/runs/{run_id}/events")
    _, run = await caller.get(f"/v1/runs/{run_id}")
    state: dict[str, Any] = run.get("state", run)
    return state


def test_an_agent_uses_its_tools_and_a_later_run_of_the_thread_reads_it_all() -> None:
    def script(request: ModelRequest) -> Script:
        known = answers(request)
        return f"It is {known[-1]}." if known else [tool_call(0, "calculator", '{"expression":"6*7"}')]

    async def run() -> None:
        engine = ScriptedEngine(script)
        async with running(Agent("a", "Compute.", engine=engine, tools=[calculator])) as caller:
            state = await caller.finished("six times seven?", thread_id="t1")
            assert state["output"] == "It is 42."
            await caller.finished("sure?", thread_id="t1")
        first_run = engine.requests[1].messages
        assert engine.requests[2].messages[: len(first_run)] == first_run

    run_async(run())


def test_a_server_that_stops_during_a_tool_leaves_the_run_to_the_next_one(tmp_path: Path) -> None:
    counted: list[str] = []
    go_on = asyncio.Event()

    @tool(effect="idempotent")
    async def idempotent() -> str:
        counted.append("idempotent")
        await go_on.wait()
        return "done twice"

    @tool(effect="once")
    async def once() -> str:
        counted.append("once")
        await go_on.wait()
        return "never reached"

    @tool(effect="once")
    async def quick() -> str:
        counted.append("quick")
        return "done"

    def script(request: ModelRequest) -> Script:
        if answers(request):
            return "Goodbye."
        return [Text("Wait. "), tool_call(0, "idempotent"), tool_call(1, "once"), tool_call(2, "quick")]

    async def run() -> None:
        settings = config(tmp_path, server={"drain_grace": 0.01})
        agent = Agent("a", engine=ScriptedEngine(script), tools=[idempotent, once, quick])
        async with running(agent, settings=settings) as caller:
            run_id = await caller.start("go")
            await until(lambda: len(counted) == 3)
            await until_run(caller, run_id, '"result":"done"')
        go_on.set()
        async with running(agent, settings=settings) as caller:
            state = await ended(caller, run_id)
        assert state["status"] == "completed"
        assert state["output"] == "Goodbye."
        calls = {call["name"]: call for call in state["tool_calls"]}
        assert calls["idempotent"]["result"] == "done twice"
        assert calls["quick"]["result"] == "done"
        assert calls["once"]["source"] == "unknown_outcome"
        assert counted.count("once") == counted.count("quick") == 1
        assert counted.count("idempotent") == 2

    run_async(run())


def test_a_cancel_from_outside_closes_the_call_and_keeps_the_text() -> None:
    @tool(effect="none")
    async def waits() -> None:
        await asyncio.Event().wait()

    async def run() -> None:
        engine = ScriptedEngine([Text("One moment. "), tool_call(0, "waits")])
        async with running(Agent("a", engine=engine, tools=[waits])) as caller:
            run_id = await caller.start("go")
            await until_run(caller, run_id, "tool_call.ended")
            await until(lambda: engine.open_now == 0)
            await caller.post(f"/v1/runs/{run_id}/cancel")
            state = await ended(caller, run_id)
        assert (state["status"], state["output"]) == ("cancelled", "One moment. ")
        assert state["tool_calls"][0]["error"]["code"] == "tool_cancelled"

    run_async(run())


def test_a_steer_from_outside_interrupts_and_is_applied() -> None:
    def script(request: ModelRequest) -> Script:
        return "Bonjour." if request.messages[-1].content == "In French." else [Text("Hello"), Hang()]

    async def run() -> None:
        async with running(Agent("a", engine=ScriptedEngine(script))) as caller:
            run_id = await caller.start("greet")
            await until_run(caller, run_id, "Hello")
            await caller.post(f"/v1/runs/{run_id}/steer", {"text": "In French.", "mode": "interrupt"})
            state = await ended(caller, run_id)
        assert state["output"] == "Bonjour."
        assert [turn["finish_reason"] for turn in state["turns"]] == ["interrupted", "stop"]
        assert state["steers"][0]["status"] == "applied"

    run_async(run())


def test_an_approval_is_given_over_http_even_after_a_restart(tmp_path: Path) -> None:
    counted: list[str] = []

    @tool(approval=True)
    async def delete(name: str) -> str:
        counted.append(name)
        return "gone"

    def script(request: ModelRequest) -> Script:
        known = answers(request)
        return known[0] if known else [tool_call(0, "delete", '{"name":"x"}')]

    async def run() -> None:
        agent = Agent("a", engine=ScriptedEngine(script), tools=[delete])
        async with running(agent, settings=config(tmp_path)) as caller:
            run_id = await caller.start("go")
            await until_run(caller, run_id, "input.requested")
            _, run = await caller.get(f"/v1/runs/{run_id}")
            input_id = run.get("state", run)["inputs"][0]["input_id"]
        assert counted == []
        async with running(agent, settings=config(tmp_path)) as caller:
            status, answer = await caller.post(f"/v1/runs/{run_id}/inputs/{input_id}", {"value": True})
            assert status in (200, 202), answer
            state = await ended(caller, run_id)
        assert (state["output"], counted) == ("gone", ["x"])

    run_async(run())
