"""Cases of servers that died, tools that ran twice, and attempts whose words came twice."""

import asyncio
from pathlib import Path
from typing import Any

from fake_upstream import CUT, Answer, FakeUpstream, delta, sse
from harness import run_async, until
from headrace import Agent, tool
from headrace.agent.port import RunContext
from headrace.client import AsyncClient, Retracted
from headrace.engine.openai.engine import OpenAIEngine
from headrace.engine.port import Capabilities, ModelRequest, Text, ToolCallPart
from headrace.engine.scripted import Script, ScriptedEngine
from headrace.errors import EngineDied
from headrace.events import RunFinished, TextDelta
from recording import tool_call
from serving import Caller, FunctionAgent, Gate, config, count, running

LEAVING: dict[str, Any] = {"drain_grace": 0.0}


async def ended(caller: Caller, run_id: str) -> dict[str, Any]:
    await caller.events(f"/v1/runs/{run_id}/events")
    _, run = await caller.get(f"/v1/runs/{run_id}")
    state = run["state"]
    assert isinstance(state, dict)
    return state


def text(state: dict[str, Any]) -> str:
    return "".join(turn.get("text", "") for turn in state["turns"])


def test_a_retry_after_a_failing_tool_and_a_failing_model_charges_once() -> None:
    async def scenario() -> None:
        charged: list[int] = []

        @tool(effect="once")
        async def charge() -> str:
            """Charge the card."""
            charged.append(1)
            return "charged"

        @tool(effect="once")
        async def ship() -> str:
            """Ship it."""
            raise RuntimeError("no truck")

        scripts: list[Script] = [
            [tool_call(0, "charge"), tool_call(1, "ship")],
            [Text("It "), EngineDied("gone")],
            [EngineDied("gone again")],
            "It is paid.",
        ]
        engine = ScriptedEngine(scripts=scripts)
        async with running(Agent("a", engine=engine, tools=[charge, ship])) as caller:
            state = await caller.finished("buy")
            assert (state["status"], state["output"], charged) == ("completed", "It is paid.", [1])
            read = [m.content for m in engine.requests[-1].messages if m.role == "tool"]
            assert read[0] == "charged"

    run_async(scenario(), deadline=60)


def test_a_failed_attempts_words_are_taken_back_each_time_so_that_the_rest_is_the_answer() -> None:
    async def scenario() -> None:
        half: list[Any] = [*(Text(f"w{number} ") for number in range(20)), EngineDied("gone")]
        engine = ScriptedEngine(scripts=[half, half, "The whole answer."], capabilities=Capabilities())
        async with running(Agent("a", engine=engine)) as caller, AsyncClient(caller.server.url) as client:
            run = await client.start("go")
            shown = ""
            retractions = 0
            async for piece in run.text():
                retractions += isinstance(piece, Retracted)
                shown = "" if isinstance(piece, Retracted) else shown + piece
            assert (shown, retractions) == ("The whole answer.", 2)
            assert (await run.result()).output == shown

    run_async(scenario(), deadline=60)


def test_a_model_server_that_closes_after_thirty_deltas_is_asked_again_without_doubled_text() -> None:
    async def scenario() -> None:
        broken = Answer([*(sse(delta(content=f"w{number} ")) for number in range(30)), CUT])
        whole = Answer([sse(delta(content="All "), delta(content="well."), delta("stop"), "[DONE]")])
        async with FakeUpstream(broken, whole) as upstream:
            agent = Agent("a", engine=OpenAIEngine(upstream.url, model="m"))
            async with running(agent) as caller:
                run_id = await caller.start("go")
                events = await caller.events(f"/v1/runs/{run_id}/events?chunk=token")
                kinds = [e["event"] for e in events]
                at = kinds.index("text.retracted")
                assert kinds.count("text.retracted") == 1
                assert "".join(e.get("text", "") for e in events[at + 1 :]) == "All well." == events[-1]["output"]

    run_async(scenario(), deadline=60)


def test_a_model_server_that_always_breaks_off_is_an_error_that_says_so_and_not_a_short_answer() -> None:
    async def scenario() -> None:
        async with (
            FakeUpstream(Answer([sse(delta(content="Half ")), CUT])) as upstream,
            running(Agent("a", engine=OpenAIEngine(upstream.url, model="m"))) as caller,
        ):
            run_id = await caller.start("go")
            last = (await caller.events(f"/v1/runs/{run_id}/events"))[-1]
            assert (last["event"], last["code"], last["retryable"]) == ("run.error", "engine_died", True)

    run_async(scenario(), deadline=60)


def test_a_failed_run_is_shown_as_failed_and_never_as_live() -> None:
    async def scenario() -> None:
        async def failing(context: RunContext) -> RunFinished:
            context.emit(TextDelta(text="half an ans"))
            await asyncio.sleep(0)
            raise RuntimeError("broken")

        async with running(FunctionAgent(failing)) as caller:
            run_id = await caller.start("x", thread_id="t")
            await until(lambda: not caller.server.supervisor.active)
            events = await caller.events(f"/v1/runs/{run_id}/events")  # a new subscriber
            assert events[-1]["event"] == "run.error"
            _, shown = await caller.get(f"/v1/runs/{run_id}")
            assert (shown["state"]["status"], shown["state"]["error"]["code"]) == ("failed", "agent_failed")
            _, threads = await caller.get("/v1/threads")
            assert threads["threads"][0]["active_run"] is None
            _, thread = await caller.get("/v1/threads/t")
            assert thread["runs"][0]["status"] == "failed"

    run_async(scenario())


def test_after_a_restart_old_runs_hold_up_no_new_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        gate = Gate()
        settings = config(tmp_path, server=LEAVING, run={"max_active": 1})
        async with running(FunctionAgent(gate), settings=settings) as caller:
            old = await caller.start("x")
            queued = await caller.start("x")
            await gate.entered.wait()
        async with running(FunctionAgent(gate), FunctionAgent(count, "count"), settings=settings) as caller:
            gate.open.set()
            assert (await caller.finished("3", agent="count"))["status"] == "completed"
            assert (await ended(caller, old))["error"]["code"] == "run_interrupted"
            assert (await ended(caller, queued))["status"] == "completed"  # it had not begun: it just begins later
            listed = (await caller.get("/v1/runs"))[1]["runs"]
            assert {row["status"] for row in listed} == {"completed", "failed"}

    run_async(scenario())


def test_many_runs_in_flight_at_a_restart_can_all_be_cancelled_after_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        gate = Gate()
        agent = FunctionAgent(gate, resumable=True)
        settings = config(tmp_path, server=LEAVING, run={"max_active": 5})
        async with running(agent, settings=settings) as caller:
            ids = [await caller.start("x") for _ in range(20)]
            await until(lambda: caller.server.supervisor.active == 5)
        async with running(agent, settings=settings) as caller:
            for run_id in ids:
                _, shown = await caller.get(f"/v1/runs/{run_id}")
                assert shown["state"].get("status", "queued") in ("running", "queued")
                assert (await caller.post(f"/v1/runs/{run_id}/cancel"))[0] == 202
            for run_id in ids:
                assert (await ended(caller, run_id))["status"] == "cancelled"
                assert (await caller.post(f"/v1/runs/{run_id}/cancel"))[0] == 200
        async with running(agent, settings=settings) as caller:
            assert caller.server.supervisor.active == 0

    run_async(scenario(), deadline=60)


def test_a_run_that_cannot_go_on_after_a_restart_keeps_what_it_had_said_and_is_announced(tmp_path: Path) -> None:
    async def scenario() -> None:
        entered = asyncio.Event()

        async def half(context: RunContext) -> RunFinished:
            context.emit(TextDelta(text="half an answer"))
            entered.set()
            await asyncio.Event().wait()
            return RunFinished(status="completed")

        settings = config(tmp_path, server=LEAVING)
        async with running(FunctionAgent(half), settings=settings) as caller:
            run_id = await caller.start("x")
            await entered.wait()
        async with running(FunctionAgent(half), settings=settings) as caller:
            events = await caller.events(f"/v1/runs/{run_id}/events")  # a subscriber that saw nothing of it before
            kinds = [e["event"] for e in events]
            assert kinds == ["run.started", "text.delta", "run.released", "run.recovered", "run.error"]
            state = await ended(caller, run_id)
            assert (state["status"], text(state)) == ("failed", "half an answer")

    run_async(scenario())


def test_arguments_that_are_cut_off_end_in_an_error_the_model_reads_and_the_run_ends() -> None:
    async def scenario() -> None:
        @tool(effect="once")
        async def send(to: str) -> str:
            """Send."""
            raise AssertionError("it must not run")

        def script(request: ModelRequest) -> Script:
            known = [m.content for m in request.messages if m.role == "tool"]
            return "Sorry." if known else [ToolCallPart(index=0, name="send", arguments='{"to":"a')]

        async with running(Agent("a", engine=ScriptedEngine(script), tools=[send])) as caller:
            state = await caller.finished("go")
            assert (state["status"], state["output"]) == ("completed", "Sorry.")
            assert state["tool_calls"][0]["error"]["code"] == "invalid_arguments"

    run_async(scenario())


def test_calls_of_a_turn_that_all_come_without_an_index_are_the_calls_they_were() -> None:
    async def scenario() -> None:
        heard: list[str] = []

        @tool(effect="none", approval=False)
        async def note(word: str) -> str:
            """Note."""
            heard.append(word)
            return word

        def one(call_id: str, word: str) -> dict[str, Any]:
            function = {"name": "note", "arguments": f'{{"word":"{word}"}}'}
            return delta(tool_calls=[{"index": None, "id": call_id, "type": "function", "function": function}])

        asking = Answer([sse(one("a", "one"), one("b", "two"), one("c", "three"), delta("tool_calls"), "[DONE]")])
        ending = Answer([sse(delta(content="Noted."), delta("stop"), "[DONE]")])
        async with FakeUpstream(asking, ending) as upstream:
            agent = Agent("a", engine=OpenAIEngine(upstream.url, model="m"), tools=[note])
            async with running(agent) as caller:
                state = await caller.finished("go")
        assert state["output"] == "Noted."
        assert heard == ["one", "two", "three"]
        assert [call["arguments"] for call in state["tool_calls"]] == [{"word": word} for word in heard]

    run_async(scenario())


def test_fragments_of_two_calls_that_come_in_turns_make_one_start_and_one_end_each() -> None:
    async def scenario() -> None:
        @tool(effect="none")
        async def note(word: str) -> str:
            """Note."""
            return word

        def part(index: int, arguments: str, **first: str) -> dict[str, Any]:
            function = {"arguments": arguments} | ({"name": "note"} if first else {})
            return delta(tool_calls=[{"index": index, "function": function, **first}])

        pieces = [
            *(part(0, '{"wo', id="a"), part(1, '{"word":', id="b"), part(0, 'rd":"o'), part(1, '"tw')),
            *(part(0, 'ne"}'), part(1, 'o"}'), delta("tool_calls")),
        ]
        ending = Answer([sse(delta(content="Noted."), delta("stop"), "[DONE]")])
        async with FakeUpstream(Answer([sse(*pieces, "[DONE]")]), ending) as upstream:
            agent = Agent("a", engine=OpenAIEngine(upstream.url, model="m"), tools=[note])
            async with running(agent) as caller:
                run_id = await caller.start("go")
                types = "tool_call.started,tool_call.ended,args.delta,tool.result"
                events = await caller.events(f"/v1/runs/{run_id}/events?types={types}")
        calls = [e for e in events if "call_id" in e]
        for call_id in {e["call_id"] for e in calls}:
            kinds = [e["event"] for e in calls if e["call_id"] == call_id and e["event"] != "args.delta"]
            assert kinds == ["tool_call.started", "tool_call.ended", "tool.result"]
            last = [e["event"] for e in calls if e["call_id"] == call_id].index("tool_call.ended")
            assert all(e["event"] != "args.delta" for e in [e for e in calls if e["call_id"] == call_id][last:])
        assert sorted(e["arguments"]["word"] for e in calls if "arguments" in e) == ["one", "two"]

    run_async(scenario())
