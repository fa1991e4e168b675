"""Cases of clients that do not read: what they cost, what they disturb, and that they lose nothing."""

import asyncio
import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from harness import run_async, until
from headrace.agent.port import RunContext
from headrace.events import RunFinished, TextDelta, ToolProgress, ToolResult
from serving import Caller, FunctionAgent, config, parse, running
from stalled import StalledReader

KB = 1024
MB = 1024 * KB
PER_FOLLOWER = 64 * KB
"""What one client that has stopped reading may cost."""

SLACK = 2 * MB
"""What Python itself allocates meanwhile: compiled patterns, the readers of the test."""


@pytest.fixture
def held() -> Iterator[Callable[[], int]]:
    """Bytes that Python objects hold now."""

    def measure() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    yield measure
    tracemalloc.stop()


def cursors(caller: Caller) -> list[int]:
    """How far each open stream has come."""
    streams: Any = caller.server._pulse._connections
    return sorted(stream.follower.cursor for stream in streams)


class Producer:
    """5 MB in records of 4 kB, once the test says so."""

    records = 1250

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def __call__(self, context: RunContext) -> RunFinished:
        await self.go.wait()
        for number in range(self.records):
            context.emit(ToolProgress(call_id="c", data=f"{number:06} " + "x" * 3993))
            if number % 20 == 0:
                await asyncio.sleep(0)
        return RunFinished(status="completed")


async def read_whole(caller: Caller, path: str) -> None:
    """Read the run of a Producer and keep nothing of it."""
    async with caller.stream(path) as answer:
        check_whole(await answer.read())


def check_whole(body: bytes) -> None:
    """The whole run of a Producer, each record once and in order."""
    events = parse(body)
    assert [event["id"] for event in events] == list(range(1, Producer.records + 3))
    assert events[-1]["event"] == "run.finished"


def test_fifty_clients_that_never_read_cost_little_and_disturb_nobody(held: Callable[[], int]) -> None:
    async def scenario() -> None:
        followers = 50
        producer = Producer()
        async with running(FunctionAgent(producer)) as caller, AsyncExitStack() as stack:
            run_id = await caller.start("x")
            path = f"/v1/runs/{run_id}/events"
            readers = [
                await stack.enter_async_context(StalledReader(caller.server.port, path)) for _ in range(followers)
            ]
            await until(lambda: cursors(caller) == [1] * followers)
            before = held()
            producer.go.set()
            await read_whole(caller, path)
            assert (await caller.server.log.head(run_id)).closed  # the producer waited for nobody
            log = sum(map(len, await caller.server.log.read_frames(run_id, limit=10_000)))
            assert cursors(caller)[-1] < Producer.records, "they have read: the test proves nothing"
            assert held() - before - log <= followers * PER_FOLLOWER + SLACK
            check_whole(await readers[0].read_all())  # one comes back to life and has lost nothing
            await stack.aclose()
            await until(lambda: not cursors(caller))
            assert held() - before - log <= SLACK

    run_async(scenario(), deadline=60)


async def big_output(context: RunContext) -> RunFinished:
    context.emit(TextDelta(text="Look: "))
    context.emit(ToolResult(call_id="c", result="x" * 24 * MB))
    context.emit(TextDelta(text="big."))
    return RunFinished(status="completed", output="Look: big.")


@pytest.mark.parametrize("after", [0, 2], ids=["from the start", "right before it"])
def test_an_output_of_24_mb_is_not_copied_for_a_client_that_does_not_read(held: Callable[[], int], after: int) -> None:
    async def scenario() -> None:
        followers = 5
        async with running(FunctionAgent(big_output)) as caller, AsyncExitStack() as stack:
            run_id = await caller.start("x")
            await until(lambda: not caller.server.supervisor.active)
            path = f"/v1/runs/{run_id}/events?chunk=token"
            before = held()
            readers = [
                await stack.enter_async_context(StalledReader(caller.server.port, path, after=after))
                for _ in range(followers)
            ]
            await until(lambda: len(cursors(caller)) == followers and cursors(caller)[0] > after)
            assert held() - before <= followers * PER_FOLLOWER + SLACK
            events = await caller.events(path)
            assert [(e["id"], len(e.get("result", ""))) for e in events] == [
                (1, 0),
                (2, 0),
                (3, 24 * MB),
                (4, 0),
                (5, 0),
            ]
            late = parse(await readers[0].read_all())
            assert late == events[after:]

    run_async(scenario(), deadline=60)


def test_heartbeats_never_stand_inside_a_frame_however_slowly_it_is_read() -> None:
    async def scenario() -> None:
        done = asyncio.Event()

        async def bulky(context: RunContext) -> RunFinished:
            for _ in range(3):
                context.emit(ToolProgress(call_id="c", data="x" * MB))
            await done.wait()
            return RunFinished(status="completed")

        settings = config(server={"heartbeat": 0.02})
        async with running(FunctionAgent(bulky), settings=settings) as caller:
            run_id = await caller.start("x")
            async with StalledReader(caller.server.port, f"/v1/runs/{run_id}/events") as reader:
                while b": hb\n" not in reader.raw[-2000:]:
                    await reader.read(16 * KB)
                    await asyncio.sleep(0)
                done.set()
                body = await reader.read_all()
            lines = body.split(b"\n")
            assert b": hb" in lines
            assert all(line == b": hb" for line in lines if b": hb" in line)
            assert [len(e["data"]) for e in parse(body) if e["event"] == "tool.progress"] == [MB] * 3

    run_async(scenario(), deadline=60)


def test_a_client_that_is_always_too_slow_and_cut_again_and_again_still_reaches_the_end() -> None:
    async def scenario() -> None:
        producer = Producer()
        async with running(FunctionAgent(producer)) as caller:
            run_id = await caller.start("x")
            producer.go.set()
            path = f"/v1/runs/{run_id}/events"
            seen: list[int] = []
            links = 0
            while not seen or seen[-1] < Producer.records + 2:
                after = seen[-1] if seen else None
                async with StalledReader(caller.server.port, path, after=after) as reader:
                    while len(reader.raw) < 400 * KB and await reader.read(64 * KB):
                        pass
                ids = [line[4:] for line in reader.raw.split(b"\n") if line.startswith(b"id: ")]
                whole = reader.raw.count(b"\n\n")
                assert whole, "no progress on this link"
                seen += [int(number) for number in ids[:whole]]
                links += 1
            assert seen == list(range(1, Producer.records + 3))
            assert links > 5

    run_async(scenario(), deadline=60)


def test_a_stream_that_is_left_leaves_no_timer_and_no_subscription() -> None:
    async def scenario() -> None:
        producer = Producer()
        async with running(FunctionAgent(producer)) as caller:
            run_id = await caller.start("x")
            run: Any = caller.server.log._runs[run_id]  # type: ignore[attr-defined]
            for policy in ("auto", "interval:5000ms"):
                async with caller.stream(f"/v1/runs/{run_id}/events?chunk={policy}"):
                    await until(lambda: len(run.subscribers) == 1 and cursors(caller) == [1])
                await until(lambda: not run.subscribers and not cursors(caller))
            producer.go.set()
            await until(lambda: not caller.server.supervisor.active)

    run_async(scenario())
