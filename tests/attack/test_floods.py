"""Many requests at once, or all in one message: one answer each, and everybody else is served meanwhile."""

import asyncio
from itertools import islice

import aiohttp
import pytest

from harness import run_async, until
from headrace.agent.port import RunContext
from headrace.errors import HeadraceError, InputConflict
from headrace.events import InputRequested, RunFinished, TextDelta
from headrace.wire.connection import MAX_COMMANDS, Ping, read_commands
from serving import FunctionAgent, Gate, count, parse, read_until, running


async def asking(context: RunContext) -> RunFinished:
    await context.ask(InputRequested(input_id="q", kind="question"))
    return RunFinished(status="completed")


async def chatting(context: RunContext) -> RunFinished:
    """Asks, and never stops talking meanwhile."""
    asked = asyncio.ensure_future(context.ask(InputRequested(input_id="q", kind="question")))
    while not asked.done():
        context.emit(TextDelta(text="still here "))
        await asyncio.sleep(0)
    return RunFinished(status="completed")


@pytest.mark.parametrize("agent", [asking, chatting])
def test_twenty_answers_in_one_tick_are_one_answer_and_the_server_lives(agent: object) -> None:
    async def scenario() -> None:
        async with running(FunctionAgent(agent)) as caller:  # type: ignore[arg-type]
            run_id = await caller.start("x")
            async with caller.stream(f"/v1/runs/{run_id}/events") as answer:
                await read_until(answer, b"input.requested")
                answers = await asyncio.gather(
                    *(caller.server.runs.answer(run_id, "default", "q", n % 2) for n in range(20)),
                    return_exceptions=True,
                )
                events = parse(await answer.read())
            assert sum(isinstance(a, InputConflict) for a in answers) == 10
            assert not [a for a in answers if isinstance(a, BaseException) and not isinstance(a, InputConflict)]
            assert [e["event"] for e in events].count("input.received") == 1
            assert (await caller.get("/healthz"))[0] == 200

    run_async(scenario())


def test_a_flood_of_frames_on_one_socket_does_not_keep_others_waiting() -> None:
    async def scenario() -> None:
        async with running(FunctionAgent(count)) as caller:
            url = caller.server.url.replace("http", "ws") + "/ws"
            async with caller.http.ws_connect(url, protocols=["headrace.v1.json"]) as socket:
                for _ in range(20):
                    await socket.send_str("\n".join(['{"type":"nonsense"}'] * 2000))
                assert (await caller.finished("3"))["status"] == "completed"
                message = await socket.receive(timeout=10)
                assert message.type is aiohttp.WSMsgType.TEXT

    run_async(scenario())


def test_a_message_holds_a_bounded_number_of_frames_and_says_so() -> None:
    found = list(read_commands("\n".join(['{"type":"ping"}'] * (MAX_COMMANDS + 5))))
    assert all(isinstance(command, Ping) for command in islice(found, MAX_COMMANDS))
    assert isinstance(found[-1], HeadraceError)
    assert len(found) == MAX_COMMANDS + 1


def test_a_client_that_leaves_while_it_waits_for_a_run_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with running(FunctionAgent(gate)) as caller:
            before = len(asyncio.all_tasks())
            waiting = [
                asyncio.create_task(caller.post("/v1/runs", {"input": "x"}, prefer="wait=300")) for _ in range(5)
            ]
            await until(lambda: caller.server.supervisor.active == 5)
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)
            await until(lambda: len(asyncio.all_tasks()) <= before + 5)  # the five runs themselves
            gate.open.set()

    run_async(scenario())


@pytest.mark.parametrize("policy", ["tokens:" + "9" * 5000, "tokens:１６", "interval:" + "9" * 5000 + "ms"])
def test_a_chunking_policy_of_any_length_is_a_400(policy: str) -> None:
    async def scenario() -> None:
        async with running(FunctionAgent(count)) as caller:
            run_id = (await caller.finished("1"))["run_id"]
            status, problem = await caller.get(f"/v1/runs/{run_id}/events?chunk={policy}")
            assert (status, problem["code"]) == (400, "invalid_request")

    run_async(scenario())
