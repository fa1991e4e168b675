"""Cases of streams that lost or doubled something on coming back (README.md of this folder lists them all)."""

import asyncio
from contextlib import aclosing
from typing import Any

import msgspec

from harness import run_async, until
from headrace import Agent
from headrace.agent.port import RunContext
from headrace.client import AsyncClient
from headrace.engine.scripted import ScriptedEngine
from headrace.events import (
    NodeFinished,
    NodeStarted,
    Record,
    RunFinished,
    TextDelta,
    ThinkingDelta,
    ToolCallEnded,
    ToolCallStarted,
    ToolProgress,
    ToolResult,
    TurnFinished,
    TurnStarted,
)
from proxy import Proxy
from serving import Caller, FunctionAgent, Gate, count, parse, read_until, running

COUNT = FunctionAgent(count)


async def first_events(caller: Caller, path: str, wanted: int) -> list[dict[str, Any]]:
    """The first `wanted` events of a stream, which is then dropped."""
    async with caller.stream(path) as answer:
        raw = b""
        while raw.count(b"\n\n") < wanted:
            raw += await answer.content.readany()
    return parse(raw[: raw.rindex(b"\n\n") + 2])[:wanted]


def test_a_thousand_events_of_one_moment_have_ids_to_resume_at() -> None:
    async def scenario() -> None:
        async def burst(context: RunContext) -> RunFinished:
            for number in range(1000):
                context.emit(ToolProgress(call_id="c", data=number))
            return RunFinished(status="completed")

        async with running(FunctionAgent(burst)) as caller:
            path = f"/v1/runs/{await caller.start('x')}/events"
            whole = await caller.events(path)
            assert [event["id"] for event in whole] == list(range(1, 1003))
            for k in range(1, 1000, 50):
                seen = await first_events(caller, path, k)
                rest = await caller.events(path, last_event_id=str(seen[-1]["id"]))
                assert seen + rest == whole

    run_async(scenario())


async def nested(context: RunContext) -> RunFinished:
    """A run with events on every level, and a pause for the loop after each."""
    events = [
        NodeStarted(node="a"),
        TurnStarted(turn=1, model="m", engine="e"),
        ThinkingDelta(text="hm"),
        ToolCallStarted(call_id="c", name="dig", turn=1),
        ToolCallEnded(call_id="c", arguments={}),
        ToolProgress(call_id="c", data=1),
        NodeStarted(node="inner", needs=("a",)),
        ToolProgress(call_id="c", data=2),
        NodeFinished(node="inner", status="completed"),
        ToolResult(call_id="c", result="water"),
        TextDelta(text="Found."),
        TurnFinished(turn=1, finish_reason="stop"),
        NodeFinished(node="a", status="completed"),
    ]
    for event in events:
        context.emit(event)
        await asyncio.sleep(0)
    return RunFinished(status="completed", output="Found.")


def test_a_filter_selects_the_same_events_on_rejoining_as_at_first() -> None:
    async def scenario() -> None:
        async with running(FunctionAgent(nested)) as caller:
            for types in ("?types=node.started,node.finished,tool.progress", ""):
                path = f"/v1/runs/{await caller.start('x')}/events{types}"
                first = await first_events(caller, path, 3)
                whole = await caller.events(path)
                for dropped in range(1, len(whole)):
                    rest = await caller.events(path, last_event_id=str(whole[dropped - 1]["id"]))
                    assert whole[:dropped] + rest == whole
                assert first == whole[:3]
                assert len(whole) == (7 if types else 15)

    run_async(scenario())


def test_who_only_joins_sees_all_that_the_starter_saw() -> None:
    async def scenario() -> None:
        async with running(FunctionAgent(nested)) as caller:
            body = msgspec.json.encode({"input": "x"})
            headers = {"accept": "text/event-stream"}
            url = caller.server.url + "/v1/runs?chunk=token"
            async with caller.http.post(url, data=body, headers=headers) as answer:
                run_id = answer.headers["x-run-id"]
                joined = asyncio.create_task(caller.events(f"/v1/runs/{run_id}/events?chunk=token"))
                started = parse(await answer.read())
            assert await joined == started
            assert len(started) == 15

    run_async(scenario())


def test_a_reconnect_without_a_cursor_doubles_neither_text_nor_arguments() -> None:
    async def scenario() -> None:
        async with running(FunctionAgent(nested)) as caller, AsyncClient(caller.server.url) as client:
            run = client.run(await caller.start("x"))
            async with aclosing(run.events()) as items:
                async for item in items:
                    if isinstance(item, Record) and isinstance(item.event, ToolCallEnded):
                        break
            first = await anext(run.events(0))
            assert isinstance(first, Record)
            assert first.seq == 1  # a replay says that it is one
            async for _ in run.events(0):
                pass
            assert run.state == await caller.server.log.state(run.id)
            assert (run.state.text, len(run.state.tool_calls)) == ("Found.", 1)

    run_async(scenario())


def test_a_resumed_answer_is_not_written_into_the_one_before() -> None:
    async def scenario() -> None:
        gate = Gate()

        async def speaking(context: RunContext) -> RunFinished:
            if context.question == "first":
                context.emit(TextDelta(text="answer A"))
                return RunFinished(status="completed", output="answer A")
            return await gate(context)

        async with running(FunctionAgent(speaking)) as caller:
            first = await caller.finished("first", thread_id="t")
            second = await caller.start("second", thread_id="t")
            await gate.entered.wait()
            _, before = await caller.get("/v1/threads/t")
            gate.open.set()
            events = await caller.events(f"/v1/runs/{second}/events")
            assert events[0]["event"] == "run.started"
            assert "".join(e.get("text", "") for e in events) == "before after"
            _, after = await caller.get("/v1/threads/t")
            assert [run["run_id"] for run in after["runs"]] == [first["run_id"], second]
            assert before["messages"][1] == after["messages"][1]
            assert [m["content"] for m in after["messages"]] == ["first", "answer A", "second", "before after"]

    run_async(scenario())


def test_ten_readers_ask_the_model_once() -> None:
    async def scenario() -> None:
        engine = ScriptedEngine("one two three", rate=100)
        async with running(Agent("a", engine=engine)) as caller:
            run_id = await caller.start("x")
            path = f"/v1/runs/{run_id}/events?chunk=token"
            sequences = await asyncio.gather(*(caller.events(path) for _ in range(10)))
            assert all(sequence == sequences[0] for sequence in sequences)
            assert sequences[0][-1]["output"] == "one two three"
            assert engine.opened == 1

    run_async(scenario())


def test_a_resumed_stream_that_breaks_before_its_first_record_keeps_its_cursor() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with (
            running(FunctionAgent(gate)) as caller,
            Proxy(caller.server.port) as proxy,
            AsyncClient(proxy.url) as client,
        ):
            run = client.run(await caller.start("x"))
            reading = asyncio.create_task(collect(run.events(chunk="token")))
            await until(lambda: run.state.seq == 2)
            for _ in range(2):  # each new link carries its headers and no record, and is cut
                links = len(proxy.links)
                proxy.cut()
                await until(lambda links=links: len(proxy.links) > links and proxy.links[-1].down)  # type: ignore[misc]
            proxy.cut()
            gate.open.set()
            items = await reading
            assert [item.seq for item in items] == [1, 2, 3, 4]

    run_async(scenario())


async def collect(items: Any) -> list[Any]:
    return [item async for item in items]


def test_a_replay_holds_the_records_of_its_own_run_only() -> None:
    async def scenario() -> None:
        both = asyncio.Barrier(2)

        async def speaking(context: RunContext) -> RunFinished:
            for _ in range(50):
                await both.wait()
                context.emit(TextDelta(text=context.question))
            return RunFinished(status="completed")

        async with running(FunctionAgent(speaking)) as caller:
            one, two = await caller.start("1"), await caller.start("2")
            for run_id, word in ((one, "1"), (two, "2")):
                await caller.events(f"/v1/runs/{run_id}/events")
                rest = await caller.events(f"/v1/runs/{run_id}/events?chunk=token", last_event_id="10")
                assert [e["id"] for e in rest] == list(range(11, 53))
                assert {e["text"] for e in rest[:-1]} == {word}

    run_async(scenario())


def test_a_reader_that_comes_when_all_have_left_begins_at_its_own_cursor() -> None:
    async def scenario() -> None:
        step = asyncio.Semaphore(0)

        async def stepping(context: RunContext) -> RunFinished:
            for number in range(100):
                await step.acquire()
                context.emit(TextDelta(text=f"{number} "))
            return RunFinished(status="completed")

        async with running(FunctionAgent(stepping)) as caller:
            run_id = await caller.start("x")
            path = f"/v1/runs/{run_id}/events?chunk=token"
            for _ in range(10):
                step.release()
            seen = await first_events(caller, path, 11)
            for _ in range(90):
                step.release()
            assert await until_ended(caller, run_id)
            rest = await caller.events(path, last_event_id=str(seen[-1]["id"]))
            assert [e["id"] for e in seen + rest] == list(range(1, 103))

    run_async(scenario())


async def until_ended(caller: Caller, run_id: str) -> bool:
    await until(lambda: not caller.server.supervisor.active)
    return (await caller.server.log.head(run_id)).closed


def test_an_answer_that_began_with_thinking_is_replayed_as_it_came() -> None:
    async def scenario() -> None:
        gate = Gate()

        async def thinking(context: RunContext) -> RunFinished:
            context.emit(TurnStarted(turn=1, model="m", engine="e"))
            context.emit(ThinkingDelta(text="hm "))
            context.emit(ThinkingDelta(text="so"))
            finished = await gate(context)
            context.emit(TurnFinished(turn=1, finish_reason="stop"))
            return finished

        async with running(FunctionAgent(thinking)) as caller:
            run_id = await caller.start("x")
            path = f"/v1/runs/{run_id}/events?chunk=token"
            async with caller.stream(path) as answer:
                raw = await read_until(answer, b"before")
                _, shown = await caller.get(f"/v1/runs/{run_id}")
                turn = shown["state"]["turns"][0]
                assert (turn["thinking"], turn["text"]) == ("hm so", "before ")
                again = asyncio.create_task(caller.events(path))
                gate.open.set()
                raw += await answer.read()
            assert await again == parse(raw)
            assert [e["event"] for e in parse(raw)][1:6] == [
                "turn.started",
                *["thinking.delta"] * 2,
                *["text.delta"] * 2,
            ]

    run_async(scenario())
