"""The line in front of one engine."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from harness import run_async
from headrace.engine.line.engine_line import EngineLine
from headrace.engine.port import Chunk, Finish, ModelRequest, Queued, Text
from headrace.errors import EngineDied, EngineOverloaded, EngineUnavailable
from headrace.messages import Message, Timing
from virtual_time import run_virtually


def asked(session: str, *, priority: int = 0, continued: str | None = None) -> ModelRequest:
    message = Message(role="user", content="Hi")
    return ModelRequest(messages=(message,), session=session, priority=priority, continued=continued)


class Kitchen:
    """Answers behind a line, each when `served` says so."""

    def __init__(self, slots: int | None, *, max_waiting: int = 100) -> None:
        self.line = EngineLine(slots, max_waiting=max_waiting)
        self.begun: list[str | None] = []
        self.served: dict[str | None, asyncio.Event] = {}
        self.most = self._now = 0

    @asynccontextmanager
    async def _answer(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[Chunk], None]:
        self.begun.append(request.session)
        self._now += 1
        self.most = max(self.most, self._now)
        try:
            yield self._chunks(request.session)
        finally:
            self._now -= 1

    async def _chunks(self, session: str | None) -> AsyncIterator[Chunk]:
        await self.served[session].wait()
        yield Text("here")
        yield Finish(reason="stop", timing=Timing(first_token_ms=1.0, total_ms=2.0))

    async def ask(self, request: ModelRequest) -> list[Chunk]:
        async with self.line.placed(request, self._answer(request)) as chunks:
            return [chunk async for chunk in chunks]

    async def all(self, *requests: ModelRequest) -> list[asyncio.Task[list[Chunk]]]:
        """All of them have asked, in this order."""
        tasks = []
        for request in requests:
            self.served.setdefault(request.session, asyncio.Event())
            tasks.append(asyncio.create_task(self.ask(request)))
            await asyncio.sleep(0)
        return tasks

    async def serve(self, *tasks: asyncio.Task[list[Chunk]]) -> None:
        for event in self.served.values():
            event.set()
        await asyncio.wait(tasks)


def positions(chunks: list[Chunk]) -> list[int]:
    return [chunk.position for chunk in chunks if isinstance(chunk, Queued)]


def test_nobody_hears_of_a_line_who_has_a_place_at_once() -> None:
    async def scenario() -> None:
        kitchen = Kitchen(2)
        tasks = await kitchen.all(asked("a"), asked("b"))
        await kitchen.serve(*tasks)
        assert [positions(task.result()) for task in tasks] == [[], []]
        assert tasks[0].result()[-1] == Finish(reason="stop", timing=Timing(first_token_ms=1.0, total_ms=2.0))

    run_async(scenario())


def test_no_more_than_the_slots_are_answered_at_once_and_all_are_answered_in_order() -> None:
    async def scenario() -> None:
        kitchen = Kitchen(2)
        tasks = await kitchen.all(*(asked(f"s{number}") for number in range(7)))
        assert kitchen.line.waiting == 5
        await kitchen.serve(*tasks)
        assert kitchen.most == 2
        assert kitchen.begun == [f"s{number}" for number in range(7)]
        assert [positions(task.result())[-1:] for task in tasks] == [[], [], [0], [0], [0], [0], [0]]
        assert kitchen.line.waiting == 0

    run_async(scenario())


def test_the_time_in_the_line_counts() -> None:
    async def scenario() -> None:
        kitchen = Kitchen(1)
        tasks = await kitchen.all(asked("a"), asked("b"))
        await asyncio.sleep(0.05)
        await kitchen.serve(*tasks)
        timing = tasks[1].result()[-1]
        assert isinstance(timing, Finish)
        assert timing.timing.queued_ms >= 49
        assert timing.timing.first_token_ms == pytest.approx(timing.timing.queued_ms + 1)

    run_async(scenario())


def test_a_session_with_many_requests_takes_its_turn_with_the_others() -> None:
    async def scenario() -> None:
        kitchen = Kitchen(1)
        tasks = await kitchen.all(*(asked("greedy") for _ in range(4)), asked("other"))
        await kitchen.serve(*tasks)
        assert kitchen.begun.index("other") <= 2

    run_async(scenario())


def test_a_sentence_that_was_cut_goes_first_and_what_may_wait_leaves_places_free() -> None:
    async def scenario() -> None:
        kitchen = Kitchen(4)
        patient = await kitchen.all(*(asked(f"patient{number}", priority=1) for number in range(5)))
        assert len(kitchen.begun) == 3, "a place is kept for whoever has a person waiting"
        others = await kitchen.all(asked("person"), asked("second"), asked("cut", continued="I was"))
        assert kitchen.begun[3:] == ["person"]
        await kitchen.serve(*patient, *others)
        assert kitchen.begun[4:6] == ["cut", "second"]

    run_async(scenario())


def test_too_many_are_refused_at_once_and_the_others_are_answered() -> None:
    async def scenario() -> None:
        kitchen = Kitchen(1, max_waiting=2)
        tasks = await kitchen.all(*(asked(f"s{number}") for number in range(3)))
        with pytest.raises(EngineOverloaded, match="2 requests wait"):
            await kitchen.ask(asked("late"))
        await kitchen.serve(*tasks)
        assert kitchen.begun == ["s0", "s1", "s2"]

    run_async(scenario())


@pytest.mark.parametrize("waits", [False, True])
def test_an_answer_that_fails_gives_its_place_back_and_its_error_is_seen(waits: bool) -> None:
    class Broken:
        async def __aenter__(self) -> AsyncIterator[Chunk]:
            raise EngineDied("away")

        async def __aexit__(self, *exc: object) -> None: ...

    async def scenario() -> None:
        kitchen = Kitchen(1)
        async with AsyncExitStack() as stack:
            if waits:
                (busy,) = await kitchen.all(asked("a"))
                stack.push_async_callback(kitchen.serve, busy)
                asyncio.get_running_loop().call_soon(kitchen.served["a"].set)
            with pytest.raises(EngineDied):
                async with kitchen.line.placed(asked("b"), Broken()) as chunks:
                    assert [chunk async for chunk in chunks] == [Queued(1), Queued(0)]
        tasks = await kitchen.all(asked("c"))
        await kitchen.serve(*tasks)
        assert positions(tasks[0].result()) == []

    run_async(scenario())


class Gone:
    """An engine that is not there, which is found out after so many seconds."""

    def __init__(self, after: float) -> None:
        self.after = after
        self.tried: list[str] = []
        self.failed: dict[str, float] = {}

    @asynccontextmanager
    async def _answer(self, name: str) -> AsyncGenerator[AsyncIterator[Chunk], None]:
        self.tried.append(name)
        await asyncio.sleep(self.after)
        if not name.startswith("well"):
            raise EngineUnavailable("It is not there.", hint="Start it.")
        yield nothing()

    async def ask(self, line: EngineLine, name: str, *, at: float = 0.0) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(at)
        try:
            async with line.placed(asked(name), self._answer(name)) as chunks:
                [chunk async for chunk in chunks]
        except EngineUnavailable as error:
            if (error.message, error.hint) == ("It is not there.", "Start it."):
                self.failed[name] = loop.time()


async def nothing() -> AsyncIterator[Chunk]:
    for chunk in list[Chunk]():
        yield chunk


def test_nobody_waits_for_all_those_before_it_to_find_out_that_the_engine_is_gone() -> None:
    async def scenario() -> None:
        engine, line = Gone(after=30), EngineLine(1)
        early = [engine.ask(line, f"s{number}", at=number / 100) for number in range(20)]
        await asyncio.gather(*early, engine.ask(line, "late", at=20))
        # The second was tried from 30 to 60, and all who were there by then have waited for as long.
        assert engine.tried == ["s0", "s1"]
        assert engine.failed["s0"] == 30
        assert {name: at for name, at in engine.failed.items() if name != "s0"} == dict.fromkeys(
            [f"s{number}" for number in range(1, 20)] + ["late"], 60
        )
        assert line.waiting == 0

    run_virtually(scenario())


def test_who_came_later_than_the_failed_one_was_tried_is_tried_too() -> None:
    async def scenario() -> None:
        engine, line = Gone(after=30), EngineLine(1)
        await asyncio.gather(engine.ask(line, "first"), engine.ask(line, "later", at=1))
        assert engine.tried == ["first", "later"]

    run_virtually(scenario())


def test_an_answer_that_has_come_meanwhile_says_that_the_engine_is_there() -> None:
    async def scenario() -> None:
        slow, engine, line = Gone(after=100), Gone(after=30), EngineLine(2)
        well = [engine.ask(line, f"well {number}") for number in range(6)]
        await asyncio.gather(slow.ask(line, "slow"), *well)
        assert slow.failed == {"slow": 100}
        assert len(engine.tried) == 6

    run_virtually(scenario())


def test_what_fails_at_once_holds_up_nobody_and_everybody_is_tried() -> None:
    async def scenario() -> None:
        engine, line = Gone(after=0.1), EngineLine(1)
        await asyncio.gather(*(engine.ask(line, f"s{number}") for number in range(5)))
        assert len(engine.tried) == 5

    run_virtually(scenario())


def test_more_places_are_given_out_at_once() -> None:
    async def scenario() -> None:
        kitchen = Kitchen(1)
        tasks = await kitchen.all(*(asked(f"s{number}") for number in range(4)))
        kitchen.line.set_places(3)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert kitchen.begun == ["s0", "s1", "s2"]
        await kitchen.serve(*tasks)

    run_async(scenario())


def test_without_a_number_nobody_waits_and_those_under_way_count_once_it_is_known() -> None:
    async def scenario() -> None:
        kitchen = Kitchen(None)
        tasks = await kitchen.all(*(asked(f"s{number}") for number in range(3)))
        assert len(kitchen.begun) == 3
        kitchen.line.set_places(3)
        tasks += await kitchen.all(asked("later"))
        assert kitchen.line.waiting == 1
        await kitchen.serve(*tasks)

    run_async(scenario())


def test_who_is_cancelled_just_when_its_turn_comes_gives_its_place_on() -> None:
    async def scenario() -> None:
        kitchen = Kitchen(1)
        first, second, third = await kitchen.all(asked("a"), asked("b"), asked("c"))
        first.cancel()
        await asyncio.wait([first])
        second.cancel()
        await kitchen.serve(second, third)
        assert positions(third.result())[-1] == 0
        assert kitchen.line.waiting == 0

    run_async(scenario())
