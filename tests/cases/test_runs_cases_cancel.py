"""Cases of runs that stopped because somebody left, and of runs that did not stop when they should have."""

import asyncio
from typing import Any

import aiohttp
import pytest

from fake_upstream import FOR_EVER, Answer, FakeUpstream, delta, sse
from harness import run_async, until
from headrace import Agent, tool
from headrace.engine.openai.engine import OpenAIEngine
from headrace.engine.port import ModelRequest, Text
from headrace.engine.scripted import Hang, Script, ScriptedEngine
from recording import tool_call
from serving import Caller, read_until, running


def answers(request: ModelRequest) -> list[str]:
    return [message.content for message in request.messages if message.role == "tool"]


def one_call(request: ModelRequest) -> Script:
    """Calls `work` once, then says what it brought."""
    known = answers(request)
    return f"It said {known[-1]}." if known else [tool_call(0, "work")]


class Tool:
    """A tool that runs until the test lets it end."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.runs = 0
        self.stopped = 0

        @tool(effect="once")
        async def work() -> str:
            """Work."""
            self.runs += 1
            self.begun.set()
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.stopped += 1
                raise
            return "done"

        self.tool = work


async def ended(caller: Caller, run_id: str) -> dict[str, Any]:
    await caller.events(f"/v1/runs/{run_id}/events")
    _, run = await caller.get(f"/v1/runs/{run_id}")
    state = run["state"]
    assert isinstance(state, dict)
    return state


def test_a_client_that_drops_in_the_middle_of_a_tool_call_stops_nothing() -> None:
    async def scenario() -> None:
        work = Tool()
        engine = ScriptedEngine(one_call)
        async with running(Agent("a", engine=engine, tools=[work.tool])) as caller:
            run_id = await caller.start("go")
            async with caller.stream(f"/v1/runs/{run_id}/events") as answer:
                await read_until(answer, b"tool_call.ended")
                await work.begun.wait()
            await until(lambda: not len(caller.server._pulse))  # the server knows that nobody listens
            work.go_on.set()
            state = await ended(caller, run_id)
            assert (state["status"], state["output"]) == ("completed", "It said done.")
            assert (work.runs, work.stopped) == (1, 0)

    run_async(scenario())


def test_a_refresh_during_a_tool_and_a_new_message_leave_the_thread_whole() -> None:
    async def scenario() -> None:
        work = Tool()

        def script(request: ModelRequest) -> Script:
            return "Quick." if request.messages[-1].content == "quick one" else one_call(request)

        async with running(Agent("a", engine=ScriptedEngine(script), tools=[work.tool])) as caller:
            slow = await caller.start("slow one", thread_id="t")
            async with caller.stream(f"/v1/runs/{slow}/events"):
                await work.begun.wait()
            quick = await caller.finished("quick one", thread_id="t")
            assert quick["output"] == "Quick."
            _, threads = await caller.get("/v1/threads")
            assert threads["threads"][0]["active_run"] == slow  # a reload finds it and can attach, or stop it
            work.go_on.set()
            assert (await ended(caller, slow))["output"] == "It said done."
            third = await caller.finished("quick one", thread_id="t")
            assert (third["status"], work.runs) == ("completed", 1)
            _, thread = await caller.get("/v1/threads/t")
            said = [m["content"] for m in thread["messages"] if m["role"] == "assistant" and m.get("content")]
            assert said == ["It said done.", "Quick.", "Quick."]

    run_async(scenario())


def test_a_stop_from_another_connection_closes_the_models_stream_before_the_run_says_it_has_ended() -> None:
    async def scenario() -> None:
        engine = ScriptedEngine([Text("Once "), Hang()])
        async with running(Agent("a", engine=engine)) as caller, aiohttp.ClientSession() as second_tab:
            run_id = await caller.start("go")
            async with caller.stream(f"/v1/runs/{run_id}/events") as answer:
                raw = await read_until(answer, b"Once ")
                async with second_tab.post(f"{caller.server.url}/v1/runs/{run_id}/cancel") as stopped:
                    assert stopped.status in (200, 202)
                raw += await read_until(answer, b"event: run.finished")
                assert engine.open_now == 0
                assert raw.index(b"cancel.requested") < raw.index(b"event: run.finished")
            assert (await ended(caller, run_id))["status"] == "cancelled"

    run_async(scenario())


def test_a_stop_closes_the_connection_to_the_model_server() -> None:
    async def scenario() -> None:
        async with FakeUpstream(Answer([sse(delta(content="Once ")), FOR_EVER])) as upstream:
            engine = OpenAIEngine(upstream.url, model="m")
            async with running(Agent("a", engine=engine)) as caller:
                run_id = await caller.start("go")
                async with caller.stream(f"/v1/runs/{run_id}/events") as answer:
                    await read_until(answer, b"Once ")
                assert upstream.open_now == 1
                await caller.post(f"/v1/runs/{run_id}/cancel")
                state = await ended(caller, run_id)
                await until(lambda: upstream.open_now == 0)
                assert (state["status"], state["output"]) == ("cancelled", "Once ")

    run_async(scenario())


def test_once_a_cancelled_run_has_ended_nothing_of_it_happens_any_more() -> None:
    async def scenario() -> None:
        steps: list[int] = []

        @tool(effect="once")
        async def loop() -> None:
            """Work in steps."""
            while True:
                steps.append(len(steps))
                await asyncio.sleep(0)

        engine = ScriptedEngine(lambda request: [tool_call(0, "loop"), tool_call(1, "loop")])
        async with running(Agent("a", engine=engine, tools=[loop])) as caller:
            run_id = await caller.start("go")
            await until(lambda: len(steps) > 10)
            await caller.post(f"/v1/runs/{run_id}/cancel")
            state = await ended(caller, run_id)
            at_the_end = len(steps)
            for _ in range(20):  # whatever still ran would run in these ticks
                await asyncio.sleep(0)
            assert len(steps) == at_the_end
            assert engine.opened == 1
            assert {call["error"]["code"] for call in state["tool_calls"]} == {"tool_cancelled"}

    run_async(scenario())


def test_fifty_tokens_shown_before_a_cancel_are_in_the_log_the_state_and_the_next_prompt() -> None:
    async def scenario() -> None:
        words = [f"w{number} " for number in range(50)]

        def script(request: ModelRequest) -> Script:
            if request.messages[-1].content == "continue":
                return "Done."
            return [*(Text(word) for word in words), Hang()]

        engine = ScriptedEngine(script)
        async with running(Agent("a", engine=engine)) as caller:
            run_id = await caller.start("go", thread_id="t")
            path = f"/v1/runs/{run_id}/events"
            async with caller.stream(path) as answer:
                await read_until(answer, b"w49 ")
            await caller.post(f"/v1/runs/{run_id}/cancel")
            events = await caller.events(path)
            assert "".join(e.get("text", "") for e in events) == "".join(words) == events[-1]["output"]
            assert events[-1]["status"] == "cancelled"
            assert (await caller.finished("continue", thread_id="t"))["output"] == "Done."
            assert "".join(words) in [m.content for m in engine.requests[-1].messages if m.role == "assistant"]

    run_async(scenario())


def test_after_a_stop_during_a_tool_the_next_message_has_an_answer_for_every_call() -> None:
    async def scenario() -> None:
        work = Tool()

        def script(request: ModelRequest) -> Script:
            return "Fine." if request.messages[-1].content == "and now?" else [tool_call(0, "work")]

        engine = ScriptedEngine(script)
        async with running(Agent("a", engine=engine, tools=[work.tool])) as caller:
            run_id = await caller.start("go", thread_id="t")
            await work.begun.wait()
            await caller.post(f"/v1/runs/{run_id}/cancel")
            await ended(caller, run_id)
            assert work.stopped == 1
            assert (await caller.finished("and now?", thread_id="t"))["output"] == "Fine."
            messages = engine.requests[-1].messages
            asked = [call.call_id for message in messages for call in message.tool_calls]
            answered = [message.call_id for message in messages if message.role == "tool"]
            assert asked
            assert asked == answered

    run_async(scenario())


@pytest.mark.parametrize("when", ["before", "after"])
def test_status_and_cancel_agree_whether_it_comes_before_or_after_the_end(when: str) -> None:
    async def scenario() -> None:
        work = Tool()
        async with running(Agent("a", engine=ScriptedEngine(one_call), tools=[work.tool])) as caller:
            run_id = await caller.start("go")
            await work.begun.wait()
            if when == "after":
                work.go_on.set()
                await ended(caller, run_id)
            status, shown = await caller.post(f"/v1/runs/{run_id}/cancel")
            final = await ended(caller, run_id)
            wanted = "completed" if when == "after" else "cancelled"
            assert (status, final["status"]) == (200 if when == "after" else 202, wanted)
            assert when == "before" or shown["state"]["status"] == wanted
            assert (await caller.post(f"/v1/runs/{run_id}/cancel"))[1]["state"]["status"] == wanted

    run_async(scenario())
