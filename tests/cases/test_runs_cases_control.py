"""Cases of steers that vanished, approvals that counted twice, and runs that strangers could reach."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import msgspec
import pytest

from harness import run_async, until
from headrace import Agent, tool
from headrace.agent.port import RunContext
from headrace.config import AuthConfig
from headrace.engine.port import ModelRequest, Text
from headrace.engine.scripted import Script, ScriptedEngine
from headrace.errors import EngineRejected
from headrace.events import InputRequested, RunFinished
from recording import LiveEngine, tool_call
from serving import Caller, FunctionAgent, Gate, config, count, read_until, running

COUNT = FunctionAgent(count)
KEYS = AuthConfig(keys={"ann": "key-a", "bob": "key-b"})


async def ended(caller: Caller, run_id: str) -> dict[str, Any]:
    await caller.events(f"/v1/runs/{run_id}/events")
    _, run = await caller.get(f"/v1/runs/{run_id}")
    state = run["state"]
    assert isinstance(state, dict)
    return state


def test_a_steer_queued_during_a_tool_comes_back_when_the_run_is_stopped_before_it_was_read() -> None:
    async def scenario() -> None:
        begun = asyncio.Event()

        @tool(effect="none")
        async def work() -> None:
            """Work."""
            begun.set()
            await asyncio.Event().wait()

        async with running(Agent("a", engine=ScriptedEngine([tool_call(0, "work")]), tools=[work])) as caller:
            run_id = await caller.start("go")
            await begun.wait()
            _, steer = await caller.post(f"/v1/runs/{run_id}/steer", {"text": "shorter"})
            await caller.post(f"/v1/runs/{run_id}/cancel")
            events = await caller.events(f"/v1/runs/{run_id}/events")
            assert [e["steer_id"] for e in events if e["event"] == "steer.returned"] == [steer["steer_id"]]
            assert events[-1]["status"] == "cancelled"
            assert [s["status"] for s in (await ended(caller, run_id))["steers"]] == ["returned"]

    run_async(scenario())


def test_a_steer_that_was_accepted_is_given_back_when_the_model_fails() -> None:
    async def scenario() -> None:
        fail = asyncio.Event()

        async def speak(request: ModelRequest) -> Any:
            yield Text("Well ")
            await fail.wait()
            raise EngineRejected("no")

        async with running(Agent("a", engine=LiveEngine(speak))) as caller:
            run_id = await caller.start("go", thread_id="t")
            async with caller.stream(f"/v1/runs/{run_id}/events") as answer:
                await read_until(answer, b"Well ")
                _, steer = await caller.post(f"/v1/runs/{run_id}/steer", {"text": "shorter"})
                fail.set()
                await answer.read()
            state = await ended(caller, run_id)
            assert (state["status"], state["error"]["code"]) == ("failed", "engine_rejected")
            assert [(s["steer_id"], s["status"]) for s in state["steers"]] == [(steer["steer_id"], "returned")]
            assert caller.server.supervisor.active == 0  # nothing holds the thread: the next run starts
            next_run = await caller.start("again", thread_id="t")
            assert (await ended(caller, next_run))["status"] == "failed"

    run_async(scenario())


def test_two_approvals_at_once_run_the_tool_once_and_another_answer_is_a_conflict() -> None:
    async def scenario() -> None:
        deleted: list[str] = []

        @tool(approval=True)
        async def delete(name: str) -> str:
            """Delete."""
            deleted.append(name)
            return "gone"

        def script(request: ModelRequest) -> Script:
            known = [m.content for m in request.messages if m.role == "tool"]
            return known[0] if known else [tool_call(0, "delete", '{"name":"x"}')]

        async with running(Agent("a", engine=ScriptedEngine(script), tools=[delete])) as caller:
            run_id = await caller.start("go")
            async with caller.stream(f"/v1/runs/{run_id}/events") as answer:
                await read_until(answer, b"input.requested")
            _, shown = await caller.get(f"/v1/runs/{run_id}")  # any later connection finds the question in the state
            (asked,) = shown["state"]["inputs"]
            assert (asked["kind"], asked["call_id"]) == ("approval", shown["state"]["tool_calls"][0]["call_id"])
            path = f"/v1/runs/{run_id}/inputs/{asked['input_id']}"
            values = (True, True, True, False, False)
            answers = await asyncio.gather(*(caller.post(path, {"value": value}) for value in values))
            events = await caller.events(f"/v1/runs/{run_id}/events")
            (received,) = (e for e in events if e["event"] == "input.received")
            for value, (status, body) in zip(values, answers, strict=True):
                if value != received["value"]:
                    assert (status, body["code"]) in ((409, "input_conflict"), (409, "run_ended"))
            assert deleted == (["x"] if received["value"] else [])

    run_async(scenario())


def test_runs_that_wait_for_a_person_hold_up_nobody() -> None:
    async def scenario() -> None:
        async def asking(context: RunContext) -> RunFinished:
            value = await context.ask(InputRequested(input_id="i", kind="question"))
            return RunFinished(status="completed", output=value)

        settings = config(run={"max_active": 1})
        async with running(FunctionAgent(asking), FunctionAgent(count, "count"), settings=settings) as caller:
            waiting = [await caller.start("x") for _ in range(3)]
            assert (await caller.finished("3", agent="count"))["status"] == "completed"
            for run_id in waiting:
                async with caller.stream(f"/v1/runs/{run_id}/events") as answer:
                    await read_until(answer, b"input.requested")
                await caller.post(f"/v1/runs/{run_id}/inputs/i", {"value": "yes"})
                assert (await ended(caller, run_id))["output"] == "yes"

    run_async(scenario())


def test_a_calls_result_that_the_client_owes_can_come_from_any_later_connection() -> None:
    async def scenario() -> None:
        agent = Agent("docs", engine=ScriptedEngine(scripts=[[tool_call(0, "look_up", '{"q":"x"}')], "Found it."]))
        tools = [{"type": "function", "name": "look_up", "parameters": {"type": "object", "properties": {}}}]
        async with running(agent) as caller:
            ask = {"model": "docs", "input": "go", "tools": tools, "background": True}
            _, response = await caller.post("/v1/responses", ask)
            await until(lambda: not caller.server.supervisor.active)
            async with aiohttp.ClientSession() as reloaded:
                later = Caller(caller.server, reloaded)
                _, shown = await later.get(f"/v1/responses/{response['id']}")
                (call,) = (item for item in shown["output"] if item["type"] == "function_call")
                result = {"type": "function_call_output", "call_id": call["call_id"], "output": "42"}
                body = {"model": "docs", "previous_response_id": response["id"], "input": [result], "tools": tools}
                status, answer = await later.post("/v1/responses", body)
            assert status == 200, answer
            assert answer["output"][-1]["content"][0]["text"] == "Found it."

    run_async(scenario())


Ask = Callable[[Caller, str, str], Awaitable[tuple[int, Any]]]
BOB = {"authorization": "Bearer key-b"}

VERBS: dict[str, Ask] = {
    "state": lambda c, r, t: c.get(f"/v1/runs/{r}", **BOB),
    "events": lambda c, r, t: c.get(f"/v1/runs/{r}/events", **BOB),
    "cancel": lambda c, r, t: c.post(f"/v1/runs/{r}/cancel", **BOB),
    "steer": lambda c, r, t: c.post(f"/v1/runs/{r}/steer", {"text": "x"}, **BOB),
    "answer": lambda c, r, t: c.post(f"/v1/runs/{r}/inputs/i", {"value": 1}, **BOB),
    "thread": lambda c, r, t: c.get(f"/v1/threads/{t}", **BOB),
    "thread runs": lambda c, r, t: c.get(f"/v1/threads/{t}/runs", **BOB),
    "response": lambda c, r, t: c.get(f"/v1/responses/resp_{r.replace('-', '')}", **BOB),
    "response stream": lambda c, r, t: c.get(f"/v1/responses/resp_{r.replace('-', '')}?stream=true", **BOB),
    "response cancel": lambda c, r, t: c.post(f"/v1/responses/resp_{r.replace('-', '')}/cancel", **BOB),
    "previous response": lambda c, r, t: c.post(
        "/v1/responses",
        {"model": "agent", "input": "1", "previous_response_id": f"resp_{r.replace('-', '')}"},
        **BOB,
    ),
}


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_reaches_a_run_of_somebody_else(verb: str) -> None:
    async def scenario() -> None:
        gate = Gate()
        async with running(FunctionAgent(gate), settings=config(auth=KEYS)) as caller:
            _, run = await caller.post("/v1/runs", {"input": "x", "thread_id": "anns"}, authorization="Bearer key-a")
            await gate.entered.wait()
            status, body = await VERBS[verb](caller, run["run_id"], "anns")
            assert status == (400 if verb == "previous response" else 404), body  # a field of the body that is wrong
            assert "code" not in body or body["code"] in ("unknown_run", "unknown_thread")  # as for one there never was
            assert len(await caller.server.log.read(run["run_id"])) == 2, "something was appended"
            assert not gate.cancelled
            gate.open.set()

    run_async(scenario())


def test_who_names_somebody_elses_thread_or_key_gets_a_new_one_of_that_name() -> None:
    async def scenario() -> None:
        heard: list[int] = []

        async def listening(context: RunContext) -> RunFinished:
            heard.append(len(context.history))
            return RunFinished(status="completed", output="secret")

        async with running(FunctionAgent(listening), settings=config(auth=KEYS)) as caller:
            runs = []
            for key in ("key-a", "key-b"):
                headers = {"authorization": f"Bearer {key}", "idempotency_key": "k", "prefer": "wait=20"}
                status, run = await caller.post("/v1/runs", {"input": "x", "thread_id": "t"}, **headers)
                assert status == 200
                runs.append(run["run_id"])
            assert heard == [0, 0]
            assert runs[0] != runs[1]
            _, thread = await caller.get("/v1/threads/t", **BOB)
            assert [run["run_id"] for run in thread["runs"]] == [runs[1]]

    run_async(scenario())


def test_a_key_in_the_url_opens_nothing_and_no_url_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with running(COUNT, settings=config(auth=KEYS)) as caller:
            for name in ("key", "api_key", "token", "access_token", "authorization"):
                assert (await caller.get(f"/v1/runs?{name}=key-a"))[0] == 401
            assert (await caller.get("/v1/runs?note=key-a", authorization="Bearer key-a"))[0] == 200

    with caplog.at_level(logging.DEBUG):
        run_async(scenario())
    assert "key-a" not in caplog.text


def test_an_answer_reaches_a_client_that_accepts_compression_token_by_token() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with running(FunctionAgent(gate)) as caller:
            body = msgspec.json.encode({"input": "x"})
            headers = {"accept": "text/event-stream", "accept-encoding": "gzip, deflate, br"}
            async with caller.http.post(caller.server.url + "/v1/runs", data=body, headers=headers) as answer:
                assert "content-encoding" not in answer.headers
                assert "no-transform" in answer.headers["cache-control"]
                await read_until(answer, b"before ")  # the gate is still shut: nothing waits for more
                assert not gate.open.is_set()
                gate.open.set()
                assert b"after" in await answer.read()

    run_async(scenario())
