"""JSON on the brink of what the stack can read: refused at the door, so that whatever is recorded stays readable."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import run_async
from headrace.agent.port import RunContext
from headrace.events import InputRequested, RunFinished, RunStarted, TextDelta, ToolProgress
from headrace.log.journal import JournalLog
from headrace.log.ports import NewRun
from headrace.messages import Message
from headrace.wire import codec
from headrace.wire.codec import encode_record
from serving import Caller, FunctionAgent, config, count, read_until, running

DEPTHS = [100, 400, *range(600, 1000, 20), 5000, 100_000]


def deep(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


async def asking(context: RunContext) -> RunFinished:
    await context.ask(InputRequested(input_id="q", kind="question"))
    return RunFinished(status="completed")


async def start(caller: Caller, levels: int) -> str | None:
    status, run = await caller.post("/v1/runs", b'{"input":"1","metadata":{"a":%b}}' % deep(levels))
    assert status in (202, 400), run
    return run["run_id"] if status == 202 else None


async def answer(caller: Caller, levels: int) -> str | None:
    run_id = await caller.start("x", agent="asking")
    async with caller.stream(f"/v1/runs/{run_id}/events") as stream:
        await read_until(stream, b"input.requested")
        status, shown = await caller.post(f"/v1/runs/{run_id}/inputs/q", b'{"value":%b}' % deep(levels))
        assert status in (202, 400), shown
        if status == 400:
            await caller.post(f"/v1/runs/{run_id}/cancel")
        assert await stream.read()
    return run_id


@pytest.mark.parametrize("door", [start, answer])
def test_whatever_depth_is_taken_can_be_read_again_also_by_the_next_server(
    door: Callable[..., Any], tmp_path: Path
) -> None:
    async def scenario() -> None:
        agents = (FunctionAgent(count), FunctionAgent(asking, "asking"))
        async with running(*agents, settings=config(tmp_path)) as caller:
            taken = [await door(caller, levels) for levels in DEPTHS]
            assert taken[0] is not None
            await readable(caller, taken)
        async with running(*agents, settings=config(tmp_path)) as caller:
            await readable(caller, taken)

    run_async(scenario())


async def readable(caller: Caller, run_ids: list[str | None]) -> None:
    for run_id in filter(None, run_ids):
        assert (await caller.get(f"/v1/runs/{run_id}"))[0] == 200
    assert (await caller.get("/v1/runs"))[0] == 200


def test_an_event_nested_too_deeply_is_refused_wherever_it_comes_from() -> None:
    value: list[Any] = []
    for _ in range(900):
        value = [value]
    with pytest.raises((ValueError, RecursionError)):
        encode_record(1, 0, ToolProgress(call_id="c", data=value))


def test_an_unfinished_run_that_cannot_be_read_stops_neither_the_start_nor_others_of_its_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with JournalLog(tmp_path) as log:
            asked = RunStarted(agent="agent", thread_id="t", input=(Message(role="user", content="3"),))
            for run_id in ("bad", "good"):
                created = await log.create(NewRun(run_id=run_id), asked, claim=True)
                assert created.claim is not None
                if run_id == "bad":  # as an older version, or a bug, might have written it
                    with monkeypatch.context() as older:
                        older.setattr(codec, "_QUOTE", ord("5"))
                        await log.writer(created.claim).commit(TextDelta(text=5))  # type: ignore[arg-type]
        async with running(FunctionAgent(count, resumable=True), settings=config(tmp_path)) as caller:
            assert (await caller.events("/v1/runs/good/events"))[-1]["output"] == "w0 w1 w2 "
            status, problem = await caller.get("/v1/runs/bad")
            assert (status, problem["code"]) == (500, "log_corrupt")
            assert [row["run_id"] for row in (await caller.get("/v1/runs"))[1]["runs"]] == ["good"]
            await caller.server.log.tidy()  # type: ignore[attr-defined]

    run_async(scenario())
