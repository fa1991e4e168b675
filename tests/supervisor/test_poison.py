"""A run that takes one worker after the other down with it ends, and those that were beside it go on."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from harness import run_async, until
from headrace import events as e
from headrace.agent.port import RunContext
from headrace.events import (
    InputRequested,
    RunErrored,
    RunFinished,
    RunRecovered,
    TextDelta,
    ToolResult,
    TurnFinished,
    TurnStarted,
)
from headrace.log.ports import Claim
from headrace.state import RunState, crashes_so_far, fold, initial
from headrace.supervisor.places import Places
from headrace.supervisor.terminal import poison
from headrace.supervisor.work import Work
from legal_runs import recorded
from serving import FunctionAgent, Gate, parse
from shared_log import Shared

HERE = Path(__file__).parent
RECOVERED = RunRecovered(worker="w", after_seq=1)
TURN = TurnStarted(turn=1, model="m", engine="e")


def state_of(*events: e.Event) -> RunState:
    first = e.RunStarted(agent="agent", thread_id="t", input=())
    return fold(recorded([first, *events]), initial("r"))


@pytest.mark.parametrize(
    ("events", "crashes"),
    [
        ([], 1),
        ([RECOVERED], 2),
        ([RECOVERED, RECOVERED], 3),
        ([RECOVERED, TextDelta(text="again"), e.ToolCallStarted(call_id="c", name="n", turn=1)], 2),
        ([RECOVERED, TurnFinished(turn=1, finish_reason="stop")], 1),
        ([RECOVERED, TurnFinished(turn=1, finish_reason="error")], 2),
        ([RECOVERED, ToolResult(call_id="c", result=1)], 1),
        ([RECOVERED, ToolResult(call_id="c", error=e.ToolFault(code="tool_failed", message="x"))], 1),
        ([RECOVERED, ToolResult(call_id="c", error=e.ToolFault(code="tool_cancelled", message="x"))], 2),
        ([RECOVERED, ToolResult(call_id="c", source="unknown_outcome")], 2),
        ([RECOVERED, e.NodeFinished(node="n", status="completed")], 1),
        ([RECOVERED, RECOVERED, e.RunReleased(worker="w")], 0),
        ([RECOVERED, RECOVERED, e.RunReleased(worker="w"), RECOVERED], 1),
    ],
)
def test_workers_lost_in_a_row_are_counted_until_the_run_gets_further(events: list[e.Event], crashes: int) -> None:
    assert crashes_so_far(state_of(*events)) == crashes


def test_the_error_says_what_was_under_way() -> None:
    called = [TURN, e.ToolCallStarted(call_id="c", name="crash", turn=1), e.ToolCallEnded(call_id="c", arguments={})]
    for events, where in (
        ([], "before its first turn"),
        ([TURN], "during turn 1"),
        ([TURN, TurnFinished(turn=1, finish_reason="stop")], "after turn 1"),
        (called, "while crash ran"),
        ([e.NodeStarted(node="index")], "in the node index"),
    ):
        assert poison(state_of(*events), 3).message.endswith(f"further, the last one {where}.")


def test_a_suspect_that_waits_for_its_turn_keeps_no_place_from_others() -> None:
    places = Places(1)
    waiting, other = (Work(Claim(run_id=name, fence=1)) for name in "ab")
    assert places.start(waiting)
    assert not places.start(other)
    assert places.next() is None
    waiting.in_line = True
    assert places.next() is other
    assert places.next() is None


async def stuck(context: RunContext) -> RunFinished:
    """Gets nowhere."""
    context.emit(TextDelta(text="x"))
    await asyncio.Event().wait()
    return RunFinished(status="completed")


STUCK = FunctionAgent(stuck, resumable=True)


def said(shared: Shared, run_id: str) -> int:
    return b"".join(shared.log.recent(run_id, 0) or ()).count(b"event: text.delta")


async def begun_and_crashed(shared: Shared, *run_ids: str, times: int) -> None:
    """Workers begin these runs and are killed."""
    for number in range(1, times + 1):
        worker = await shared.worker(f"killed {number}", STUCK, max_crashes=100)
        await until(lambda number=number: all(said(shared, run_id) == number for run_id in run_ids))  # type: ignore[misc]
        await shared.crash(worker, *run_ids)


def test_a_run_that_has_lost_three_workers_is_not_tried_again() -> None:
    async def scenario() -> None:
        async with Shared() as shared:
            run_id = await shared.leave()
            await begun_and_crashed(shared, run_id, times=3)
            await shared.worker("last", STUCK)
            *_, recovered, error = await shared.ended(run_id)
            assert isinstance(recovered, RunRecovered)
            assert isinstance(error, RunErrored)
            assert (error.code, error.retryable) == ("poison", False)
            assert said(shared, run_id) == 3

    run_async(scenario())


def test_a_recovery_is_durable_before_the_agent_does_anything() -> None:
    async def scenario() -> None:
        async with Shared() as shared:
            known: list[bool] = []

            async def look(context: RunContext) -> RunFinished:
                known.append(b"run.recovered" in b"".join(shared.log.recent(context.run_id, 0) or ()))
                return RunFinished(status="completed")

            run_id = await shared.leave()
            await begun_and_crashed(shared, run_id, times=1)
            await shared.worker("second", FunctionAgent(look, resumable=True))
            await shared.ended(run_id)
            assert known == [True]

    run_async(scenario())


def test_a_run_whose_workers_leave_in_order_is_never_poison() -> None:
    async def scenario() -> None:
        gate = Gate()
        agent = FunctionAgent(gate, resumable=True)
        async with Shared() as shared:
            run_id = await shared.leave()
            for number in range(6):
                worker = await shared.worker(f"leaves {number}", agent)
                await gate.entered.wait()
                gate.entered.clear()
                await worker.drain(0)
                await until(lambda worker=worker: worker.active == 0)  # type: ignore[misc]
            gate.open.set()
            await shared.worker("last", agent)
            assert isinstance((await shared.ended(run_id))[-1], RunFinished)

    run_async(scenario())


def test_runs_that_were_beside_a_poisonous_one_are_spared() -> None:
    async def scenario() -> None:
        async with Shared() as shared:
            bad, *beside = [await shared.leave() for _ in range(5)]
            await begun_and_crashed(shared, bad, *beside, times=2)
            alone = await shared.worker("third", STUCK)
            await until(lambda: said(shared, bad) == 3)
            await shared.crash(alone, bad, *beside)
            ends = FunctionAgent(finishes, resumable=True)
            await shared.worker("last", ends)
            *_, error = await shared.ended(bad)
            assert isinstance(error, RunErrored)
            assert error.code == "poison"
            for run_id in beside:
                assert isinstance((await shared.ended(run_id))[-1], RunFinished)

    run_async(scenario())


async def finishes(context: RunContext) -> RunFinished:
    return RunFinished(status="completed")


@pytest.mark.parametrize(
    "further",
    [
        TurnFinished(turn=1, finish_reason="stop"),
        ToolResult(call_id="c", result=1),
        InputRequested(input_id="q", kind="question"),
    ],
    ids=e.event_type,
)
def test_a_suspect_lets_the_next_one_begin_once_it_gets_further_or_waits_for_a_person(further: e.Event) -> None:
    async def scenario() -> None:
        go_on = asyncio.Event()
        begun: list[str] = []

        async def suspect(context: RunContext) -> RunFinished:
            begun.append(context.run_id)
            await go_on.wait()
            match further:
                case InputRequested():
                    await context.ask(further)
                case ToolResult():
                    await context.commit(further)
                case _:
                    context.emit(further)
            return await stuck(context)

        async with Shared() as shared:
            first, second = [await shared.leave() for _ in range(2)]
            await begun_and_crashed(shared, first, second, times=2)
            new = await shared.leave()
            worker = await shared.worker("third", FunctionAgent(suspect, resumable=True), max_active=2)
            await until(lambda: len(begun) == 2)
            assert begun == [first, new]
            assert worker.active == 3
            go_on.set()
            await until(lambda: begun == [first, new, second])

    run_async(scenario())


def test_a_suspect_that_waits_for_its_turn_can_be_cancelled() -> None:
    async def scenario() -> None:
        async with Shared() as shared:
            first, second = [await shared.leave() for _ in range(2)]
            await begun_and_crashed(shared, first, second, times=2)
            worker = await shared.worker("third", STUCK)
            await until(lambda: said(shared, first) == 3)
            await until(lambda: worker.active == 2)
            await shared.log.append(second, [e.CancelRequested()])
            last = (await shared.ended(second))[-1]
            assert isinstance(last, RunFinished)
            assert last.status == "cancelled"

    run_async(scenario())


class Mortal:
    """A server on a store, which its agents' tools can end; started again by the test."""

    def __init__(self, folder: Path) -> None:
        self.ledger = folder / "ledger"
        self._environment = {
            **os.environ,
            "LEDGER": str(self.ledger),
            "HEADRACE_LOG__PATH": str(folder / "store"),
            "HEADRACE_SERVER__PORT": "0",
        }

    @contextlib.asynccontextmanager
    async def life(self) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headrace.cli", "serve", "poison_app:app"),
            cwd=HERE,
            env=self._environment,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            line = await process.stdout.readline()  # empty if it is killed before it serves
            yield process, line.decode().split()[-1] if line else ""
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()


async def until_killed(process: asyncio.subprocess.Process, url: str, agent: str) -> None:
    """Start a run that ends the server, most likely before it has answered."""
    body = b'{"input":"x","agent":"%b"}' % agent.encode()
    async with aiohttp.ClientSession() as http:
        with contextlib.suppress(aiohttp.ClientError):
            async with http.post(f"{url}/v1/runs", data=body) as answer:
                assert answer.status == 202
    assert await process.wait() == 9


async def last_of_the_run(url: str) -> dict[str, Any]:
    async with aiohttp.ClientSession(url) as http:
        async with http.get("/v1/runs") as answer:
            (run,) = (await answer.json())["runs"]
        async with http.get(f"/v1/runs/{run['run_id']}/events") as answer:
            return parse(await answer.read())[-1]


@pytest.mark.parametrize(("agent", "where"), [("again", "while crash ran"), ("sudden", "before its first turn")])
def test_what_has_killed_the_server_three_times_is_not_run_again(tmp_path: Path, agent: str, where: str) -> None:
    async def scenario() -> None:
        server = Mortal(tmp_path)
        async with server.life() as (process, url):
            await until_killed(process, url, agent)
        for _ in range(2):
            async with server.life() as (process, _):
                assert await process.wait() == 9
        async with server.life() as (_, url):
            last = await last_of_the_run(url)
        assert (last["event"], last["code"]) == ("run.error", "poison")
        assert where in last["message"]
        assert server.ledger.read_text() == "crash\n" * 3

    run_async(scenario(), deadline=60)


def test_a_tool_that_may_run_only_once_kills_the_server_once_and_the_run_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = Mortal(tmp_path)
        async with server.life() as (process, url):
            await until_killed(process, url, "once")
        async with server.life() as (_, url):
            last = await last_of_the_run(url)
        assert (last["event"], last["output"]) == ("run.finished", "I do not know.")
        assert server.ledger.read_text() == "crash\n"

    run_async(scenario(), deadline=60)
