"""A pool of scripted engines. Time is virtual: what is said to take 7 seconds takes exactly 7, and none of ours."""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from harness import until
from headrace.engine.pool.choice import Load, choose, prefix_of
from headrace.engine.pool.pool import EnginePool
from headrace.engine.port import Capabilities, Chunk, Engine, Finish, ModelRequest, Queued, Text
from headrace.engine.scripted import Hang, Pause, Script, ScriptedEngine, Step
from headrace.errors import (
    ConfigError,
    ContextOverflow,
    EngineDied,
    EngineError,
    EngineOverloaded,
    EngineProtocol,
    EngineRejected,
    EngineTimeout,
    EngineUnavailable,
)
from headrace.testing.engine_contract import LONG, REQUEST, EngineContract, collect, text_of
from virtual_time import run_virtually


class TestPool(EngineContract):
    """Two replicas with two places each, so that six answers at once must wait."""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Engine]:
        self.replicas = [ScriptedEngine(self._script) for _ in range(2)]
        async with EnginePool({f"r{at}": replica for at, replica in enumerate(self.replicas)}, limit=2) as pool:
            yield pool

    @staticmethod
    def _script(request: ModelRequest) -> list[Step]:
        words: list[Step] = [Text(f"{word} ") for word in ["one", "two", "three", "four", "five"]]
        return [*words, Hang()] if request == LONG else words

    async def idle(self, engine: Engine) -> None:
        await until(lambda: not any(replica.open_now for replica in self.replicas))


# The scene


class Server(ScriptedEngine):
    """A replica that can fail: what `fault` is, every request meets instead of an answer. `token` is by which it proves
    that it is fit, and takes no time."""

    def __init__(self, script: Script | Callable[[ModelRequest], Script] = "Hello you", **more: Any) -> None:
        self.fault: EngineError | Hang | None = None
        self.token: Script = "Hi"
        self._says = script
        super().__init__(self._reply, **more)

    def _reply(self, request: ModelRequest) -> Script:
        if isinstance(self.fault, EngineError):
            raise self.fault
        if self.fault is not None:
            return [self.fault]
        if request.max_tokens == 1:
            return self.token
        return self._says(request) if callable(self._says) else self._says

    @property
    def asked(self) -> int:
        """How often, not counting the tokens by which it proves that it is fit."""
        return sum(request.max_tokens != 1 for request in self.requests)


def of_home(home: str, *others: str, number: int = 0, priority: int = 0) -> ModelRequest:
    """A request whose home is this one of those replicas; requests with different numbers are of different threads."""
    idle = [Load(name=name, active=0, size=8, room=8) for name in (home, *others)]
    asked = (msgspec.structs.replace(REQUEST, session=f"s{n}", priority=priority) for n in range(10_000))
    at_home = (request for request in asked if choose(idle, prefix_of(request)) == home)
    return [next(at_home) for _ in range(number + 1)][number]


def states(pool: EnginePool) -> dict[str, str]:
    return {standing.name: standing.state for standing in pool.standings()}


def now() -> float:
    return asyncio.get_running_loop().time()


def taking(seconds: float) -> list[Step]:
    return [Pause(seconds), Text("done")]


CUT_SHORT: Script = [Text("One "), EngineDied("gone")]


def positions(chunks: Sequence[Chunk]) -> list[int]:
    return [chunk.position for chunk in chunks if isinstance(chunk, Queued)]


def timing_of(chunks: Sequence[Chunk]) -> dict[str, float]:
    finish = chunks[-1]
    assert isinstance(finish, Finish)
    return {"queued": finish.timing.queued_ms, "total": finish.timing.total_ms}


async def fail(engine: Engine, request: ModelRequest = REQUEST) -> EngineError:
    try:
        chunks = await collect(engine, request)
    except EngineError as error:
        return error
    raise AssertionError(f"it answered {chunks}")


# Where a request goes


def test_a_thread_stays_at_its_replica_and_threads_are_spread() -> None:
    async def scenario() -> None:
        replicas = {name: Server() for name in ("a", "b")}
        async with EnginePool(replicas) as pool:
            for number in range(3):
                for home, other in (("a", "b"), ("b", "a")):
                    for _ in range(2):
                        await collect(pool, of_home(home, other, number=number))
            sessions = [{r.session for r in replica.requests if r.session} for replica in replicas.values()]
            assert [len(one) for one in sessions] == [3, 3]
            assert not sessions[0] & sessions[1]

    run_virtually(scenario())


def test_a_thread_that_went_elsewhere_because_its_home_was_busy_goes_on_where_its_prefix_is() -> None:
    async def scenario() -> None:
        a, b = Server(taking(2.0)), Server()
        async with EnginePool({"a": a, "b": b}, limit=1) as pool:
            busy = asyncio.ensure_future(collect(pool, of_home("a", "b", number=1)))
            await asyncio.sleep(0)
            guest = of_home("a", "b")
            await collect(pool, guest)
            await busy
            await collect(pool, guest)
            assert (a.asked, b.asked) == (1, 2)
            await collect(pool, of_home("a", "b", number=2))
            assert (a.asked, b.asked) == (2, 2)

    run_virtually(scenario())


def test_threads_of_a_replica_that_was_out_of_service_go_home_when_it_is_back() -> None:
    async def scenario() -> None:
        a, b = Server(), Server()
        async with EnginePool({"a": a, "b": b}) as pool:
            await pool.drain("a")
            await collect(pool, of_home("a", "b"))
            await pool.resume("a")
            await collect(pool, of_home("a", "b"))
            assert (a.asked, b.asked) == (1, 1)

    run_virtually(scenario())


def test_only_the_latest_prefixes_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.engine.pool.replica._REMEMBERED", 2)

    async def scenario() -> None:
        a, b = Server(taking(2.0)), Server()
        async with EnginePool({"a": a, "b": b}, limit=1) as pool:
            busy = asyncio.ensure_future(collect(pool, of_home("a", "b", number=9)))
            await asyncio.sleep(0)
            guests = [of_home("a", "b", number=number) for number in range(3)]
            for guest in guests:
                await collect(pool, guest)
            await busy
            for guest in guests[::-1]:
                await collect(pool, guest)
            assert (a.asked, b.asked) == (2, 5)

    run_virtually(scenario())


@pytest.mark.parametrize(
    "fault", [EngineUnavailable("refused"), EngineTimeout("silent"), EngineDied("gone"), EngineProtocol("a page")]
)
def test_a_replica_that_fails_before_the_first_word_costs_the_request_nothing(fault: EngineError) -> None:
    async def scenario() -> None:
        a, b = Server(), Server()
        async with EnginePool({"a": a, "b": b}) as pool:
            a.fault = fault
            request = msgspec.structs.replace(of_home("a", "b"), request_id="run-1")
            chunks = await collect(pool, request)
            assert text_of(chunks) == "Hello you"
            assert positions(chunks) == []
            assert (a.asked, b.asked) == (1, 1)
            assert a.requests[-1].request_id == "run-1" != b.requests[-1].request_id
            assert now() == 0.0

    run_virtually(scenario())


@pytest.mark.parametrize("fault", [EngineRejected("no such model"), ContextOverflow("too long")])
def test_a_request_that_is_refused_is_not_tried_elsewhere_and_is_no_failure_of_the_replica(fault: EngineError) -> None:
    async def scenario() -> None:
        a, b = Server(), Server()
        async with EnginePool({"a": a, "b": b}) as pool:
            a.fault = fault
            for _ in range(5):
                assert await fail(pool, of_home("a", "b")) is fault
            assert (a.asked, b.asked) == (5, 0)
            assert states(pool)["a"] == "closed"

    run_virtually(scenario())


def test_after_the_first_word_the_caller_decides_and_may_go_on_at_another_replica() -> None:
    async def scenario() -> None:
        a, b = Server(CUT_SHORT), Server("One two three")
        async with EnginePool({"a": a, "b": b}) as pool:
            request = of_home("a", "b")
            async with pool.stream(request) as chunks:
                assert await anext(chunks) == Text("One ")
                with pytest.raises(EngineDied):
                    await anext(chunks)
            a.fault = EngineUnavailable("refused")
            rest = await collect(pool, msgspec.structs.replace(request, continued="One "))
            assert text_of(rest) == "two three"
            assert (a.asked, b.asked) == (2, 1)

    run_virtually(scenario())


def test_when_every_replica_fails_the_last_one_s_error_is_raised() -> None:
    async def scenario() -> None:
        a, b = Server(), Server()
        async with EnginePool({"a": a, "b": b}) as pool:
            a.fault, b.fault = EngineUnavailable("a is gone"), EngineUnavailable("b is gone")
            assert await fail(pool, of_home("a", "b")) is b.fault
            assert pool.waiting == 0

    run_virtually(scenario())


# How much each is given


class Telling(Server):
    """It learns how many slots its server has when it is asked for something, and not before it is `up`."""

    def __init__(self, slots: int, *, up: bool = True) -> None:
        self.slots = slots
        self.up = up
        super().__init__([Text("well "), *taking(5.0)])

    def _reply(self, request: ModelRequest) -> Script:
        if not self.up:
            raise EngineUnavailable("not yet")
        self.capabilities = msgspec.structs.replace(self.capabilities, slots=self.slots)
        return super()._reply(request)


async def at_once(pool: EnginePool) -> dict[str, int]:
    """How many of ten answers each replica gives at once."""
    tasks = [asyncio.ensure_future(collect(pool, msgspec.structs.replace(REQUEST, session=f"s{n}"))) for n in range(10)]
    await asyncio.sleep(0.1)
    active = {one.name: one.active for one in pool.standings()}
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return active


def test_each_replica_may_have_a_limit_of_its_own() -> None:
    async def scenario() -> None:
        replicas = {name: Server(taking(5.0)) for name in ("a", "b")}
        async with EnginePool(replicas, limit={"a": 1, "b": 3}) as pool:
            assert await at_once(pool) == {"a": 1, "b": 3}
            assert pool.capabilities.slots == 4
        with pytest.raises(ConfigError, match="no replica c"):
            EnginePool(replicas, limit={"c": 1})

    run_virtually(scenario())


def test_slots_that_an_engine_learns_when_it_is_entered_are_its_limit_unless_it_was_given_one() -> None:
    async def scenario() -> None:
        async with EnginePool({"a": Telling(2), "b": Telling(3)}) as pool:
            assert await at_once(pool) == {"a": 2, "b": 3}
            assert pool.capabilities.slots == 5
        async with EnginePool({"a": Telling(2), "b": Telling(3)}, limit={"b": 1}) as pool:
            assert await at_once(pool) == {"a": 2, "b": 1}

    run_virtually(scenario())


def test_slots_of_a_replica_that_comes_up_later_are_its_limit_from_then_on() -> None:
    async def scenario() -> None:
        late = Telling(2, up=False)
        async with EnginePool({"a": late, "b": Telling(1)}) as pool:
            assert [one.size for one in pool.standings()] == [1, 1]
            late.up = True
            await asyncio.sleep(60.0)
            assert await at_once(pool) == {"a": 2, "b": 1}

    run_virtually(scenario())


def test_a_server_that_comes_back_with_more_slots_is_given_more_at_once() -> None:
    async def scenario() -> None:
        server = Telling(1)
        async with EnginePool({"a": server}) as pool, asyncio.TaskGroup() as group:
            server.slots = 3
            answers = [group.create_task(collect(pool)) for _ in range(3)]
            await asyncio.sleep(0.1)
            assert [one.active for one in pool.standings()] == [3]  # and not when the first one has ended
        assert all(text_of(answer.result()) == "well done" for answer in answers)

    run_virtually(scenario())


# The line


def test_more_requests_than_places_wait_in_order_are_told_where_they_stand_and_count_their_waiting() -> None:
    async def scenario() -> None:
        async with EnginePool({"a": Server(taking(2.0))}, limit=1) as pool:
            began = now()
            first, second, third = await asyncio.gather(*(collect(pool) for _ in range(3)))
            assert [positions(chunks) for chunks in (first, second, third)] == [[], [1, 0], [2, 1, 0]]
            assert [timing_of(chunks)["queued"] for chunks in (first, second, third)] == [0, 2000, 4000]
            assert [timing_of(chunks)["total"] for chunks in (first, second, third)] == [2000, 4000, 6000]
            assert now() - began == 6.0

    run_virtually(scenario())


def test_a_long_line_is_told_its_places_again_only_when_half_of_those_before_have_gone() -> None:
    async def scenario() -> None:
        async with EnginePool({"a": Server(taking(1.0))}, limit=1) as pool:
            *_, last = await asyncio.gather(*(collect(pool) for _ in range(41)))
            assert positions(last) == [40, 20, 10, 5, 2, 1, 0]

    run_virtually(scenario())


def test_a_place_that_becomes_free_at_any_replica_goes_to_the_first_in_the_line() -> None:
    async def scenario() -> None:
        a, b = Server(taking(9.0)), Server(taking(1.0))
        async with EnginePool({"a": a, "b": b}, limit=1) as pool:
            await asyncio.gather(*(collect(pool, of_home("a", "b", number=number)) for number in range(4)))
            assert (a.asked, b.asked) == (1, 3)

    run_virtually(scenario())


def test_a_caller_who_leaves_the_line_or_whose_deadline_passes_there_is_not_waited_for() -> None:
    async def scenario() -> None:
        server = Server(taking(10.0))
        async with EnginePool({"a": server}, limit=1) as pool, asyncio.TaskGroup() as group:
            group.create_task(collect(pool))
            leaver = group.create_task(collect(pool))
            last = group.create_task(collect(pool))
            await asyncio.sleep(0)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(3.0):
                    await collect(pool)
            assert (pool.waiting, now()) == (2, 3.0)
            leaver.cancel()
            assert timing_of(await last)["queued"] == 10_000  # and not 20,000
            assert server.asked == 2

    run_virtually(scenario())


def test_leaving_while_a_place_is_given_loses_no_place() -> None:
    async def scenario() -> None:
        async with EnginePool({"a": Server(taking(1.0))}, limit=1) as pool:
            async with asyncio.TaskGroup() as group:
                group.create_task(collect(pool))
                await asyncio.sleep(0.1)
                async with pool.stream(REQUEST) as chunks:
                    assert await anext(chunks) == Queued(1)
                    await asyncio.sleep(1.5)  # it has the place by now, and does not know it yet
            assert [(one.active, pool.waiting) for one in pool.standings()] == [(0, 0)]
            assert text_of(await collect(pool)) == "done"

    run_virtually(scenario())


def test_a_line_that_is_too_long_is_not_joined() -> None:
    async def scenario() -> None:
        async with EnginePool({"a": Server(taking(1.0))}, limit=1, max_waiting=2) as pool:
            results = await asyncio.gather(*(collect(pool) for _ in range(5)), return_exceptions=True)
            assert [isinstance(one, EngineOverloaded) for one in results] == [False, False, False, True, True]

    run_virtually(scenario())


def test_two_long_patient_streams_leave_a_place_for_an_urgent_request() -> None:
    """priority: at an engine with two places, priorities alone would let it wait."""

    async def scenario() -> None:
        async with EnginePool({"a": Server(taking(100.0))}, limit=2) as pool, asyncio.TaskGroup() as group:
            patient = [group.create_task(collect(pool, of_home("a", number=n, priority=1))) for n in range(2)]
            await asyncio.sleep(1.0)
            assert positions(await collect(pool)) == []
            assert [positions(await one) for one in patient] == [[], [1, 0]]

    run_virtually(scenario())


def test_a_sentence_that_was_cut_goes_on_before_others_begin() -> None:
    async def scenario() -> None:
        async with EnginePool({"a": Server(taking(1.0))}, limit=1) as pool, asyncio.TaskGroup() as group:
            for _ in range(5):
                group.create_task(collect(pool))
            await asyncio.sleep(0.5)
            cut = msgspec.structs.replace(REQUEST, continued="do")
            assert timing_of(await collect(pool, cut))["queued"] == 500

    run_virtually(scenario())


def test_patient_work_goes_on_under_urgent_load_and_waits_for_most_of_it() -> None:
    async def scenario() -> None:
        served: list[int] = []

        def script(request: ModelRequest) -> Script:
            served.append(request.priority)
            return taking(1.0)

        async with EnginePool({"a": Server(script)}, limit=1) as pool, asyncio.TaskGroup() as group:
            served.clear()
            for priority in [0, *[5] * 3, *[0] * 30]:
                group.create_task(collect(pool, msgspec.structs.replace(REQUEST, priority=priority)))
        assert [at for at, priority in enumerate(served) if priority] == [9, 18, 27]

    run_virtually(scenario())


# Health


def test_a_replica_that_fails_in_a_row_is_left_alone_tried_by_one_request_and_comes_back_slowly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        a, b = Server(taking(1.0)), Server(taking(1.0))
        async with EnginePool({"a": a, "b": b}, limit=8) as pool:
            requests = [of_home("a", "b", number=number) for number in range(8)]
            a.fault = EngineUnavailable("refused")
            for _ in range(5):
                await collect(pool, requests[0])
            assert a.asked == 4  # three, and one trial after a second
            assert states(pool)["a"] == "open"
            a.fault = None
            await asyncio.sleep(5.0)
            async with asyncio.TaskGroup() as group:
                for request in requests:
                    group.create_task(collect(pool, request))
                await asyncio.sleep(0.5)
                assert [one.active for one in pool.standings()] == [1, 7]
                assert states(pool)["a"] == "half_open"
                await asyncio.sleep(0.6)
                assert states(pool)["a"] == "warming"
            assert next(one.size for one in pool.standings()) < 8
            await asyncio.sleep(10.0)
            await collect(pool, requests[0])
            assert [(one.state, one.size) for one in pool.standings()] == [("closed", 8)] * 2

    run_virtually(scenario())
    left, again = "the model server a is left alone for a while: refused", "the model server a answers again"
    assert [record.message for record in caplog.records] == [left, left, again]


def test_a_replica_that_dies_in_the_middle_of_its_answers_is_left_alone_too() -> None:
    async def scenario() -> None:
        a, b = Server(CUT_SHORT), Server()
        async with EnginePool({"a": a, "b": b}) as pool:
            for _ in range(3):
                assert isinstance(await fail(pool, of_home("a", "b")), EngineDied)
            assert states(pool)["a"] == "open"
            assert text_of(await collect(pool, of_home("a", "b"))) == "Hello you"

    run_virtually(scenario())


def test_an_answer_from_before_the_failures_that_ends_during_the_trial_lets_no_second_one_in() -> None:
    async def scenario() -> None:
        a, b = Server([Text("Begun "), *taking(10.0)]), Server()
        async with EnginePool({"a": a, "b": b}) as pool, asyncio.TaskGroup() as group:
            old, new = of_home("a", "b"), of_home("a", "b", number=1)
            group.create_task(collect(pool, old))
            await asyncio.sleep(1.0)
            a.fault = EngineUnavailable("refused")
            for _ in range(3):
                await collect(pool, new)
            a.fault = Hang()
            await asyncio.sleep(5.0)
            trial = group.create_task(collect(pool, new))
            await asyncio.sleep(5.0)  # the old one has ended
            assert states(pool)["a"] == "half_open"
            await collect(pool, new)
            assert (a.asked, b.asked) == (5, 4)
            trial.cancel()

    run_virtually(scenario())


def test_a_replica_that_answers_between_its_failures_is_asked_on() -> None:
    async def scenario() -> None:
        a, b = Server(), Server()
        async with EnginePool({"a": a, "b": b}) as pool:
            for _ in range(3):
                for fault in (EngineTimeout("silent"), EngineDied("gone"), None):
                    a.fault = fault
                    await collect(pool, of_home("a", "b"))
            assert (a.asked, states(pool)["a"]) == (9, "closed")

    run_virtually(scenario())


def test_requests_wait_for_a_pool_that_restarts_and_the_first_that_gets_through_lets_the_others_in() -> None:
    async def scenario() -> None:
        a = Server()
        async with EnginePool({"a": a}, restart_wait=10.0) as pool:
            a.fault = EngineUnavailable("refused")
            for _ in range(3):
                await fail(pool)
            async with asyncio.TaskGroup() as group:
                waiting = [group.create_task(collect(pool)) for _ in range(3)]
                await asyncio.sleep(0.5)
                a.fault = None
            assert [text_of(one.result()) for one in waiting] == ["Hello you"] * 3
            assert now() == pytest.approx(1.0, abs=0.3)

    run_virtually(scenario())


def test_without_any_replica_a_request_waits_only_so_long_and_says_what_was_wrong() -> None:
    async def scenario() -> None:
        a = Server()
        async with EnginePool({"a": a}, restart_wait=4.0) as pool:
            await pool.drain("a")
            error = await fail(pool)
            assert isinstance(error, EngineUnavailable)
            assert now() == 4.0
            assert pool.waiting == 0

    run_virtually(scenario())


def test_an_overloaded_replica_is_left_alone_for_as_long_as_it_asks_and_another_one_answers() -> None:
    async def scenario() -> None:
        a, b = Server(), Server()
        async with EnginePool({"a": a, "b": b}) as pool:
            request = of_home("a", "b")
            a.fault = EngineOverloaded("busy", retry_after=7.0)
            await collect(pool, request)
            a.fault = None
            await asyncio.sleep(6.9)
            await collect(pool, request)
            assert (a.asked, b.asked) == (1, 2)
            await asyncio.sleep(0.2)
            await collect(pool, request)
            assert (a.asked, b.asked) == (2, 2)

    run_virtually(scenario())


def test_the_only_replica_s_wish_to_be_left_alone_reaches_the_caller_and_holds_the_others() -> None:
    async def scenario() -> None:
        a = Server()
        async with EnginePool({"a": a}) as pool:
            a.fault = EngineOverloaded("busy", retry_after=3.0)
            assert await fail(pool) is a.fault
            a.fault = None
            chunks = await collect(pool)
            assert positions(chunks) == [1, 0]
            assert timing_of(chunks)["queued"] == 3000

    run_virtually(scenario())


def test_who_waits_for_the_replica_that_is_left_gets_another_chance_when_that_one_goes_too() -> None:
    async def scenario() -> None:
        a, b = Server(), Server(taking(5.0))
        async with EnginePool({"a": a, "b": b}, limit=1) as pool, asyncio.TaskGroup() as group:
            group.create_task(collect(pool, of_home("b", "a")))
            await asyncio.sleep(1.0)
            a.fault = EngineUnavailable("refused")
            waiting = group.create_task(collect(pool, of_home("a", "b")))
            await asyncio.sleep(1.0)
            a.fault = None
            group.create_task(pool.drain("b"))
            assert text_of(await waiting) == "Hello you"
            assert a.asked == 2

    run_virtually(scenario())


# Who is asked at all


def test_a_drained_replica_finishes_what_it_has_and_comes_back_when_it_is_fit() -> None:
    async def scenario() -> None:
        a, b = Server(taking(5.0)), Server()
        async with EnginePool({"a": a, "b": b}) as pool, asyncio.TaskGroup() as group:
            request = of_home("a", "b")
            held = group.create_task(collect(pool, request))
            await asyncio.sleep(1.0)
            await pool.drain("a")
            assert (now(), held.done()) == (5.0, True)
            await collect(pool, request)
            assert (a.asked, b.asked) == (1, 1)
            a.fault = EngineDied("it was restarted without its model")
            with pytest.raises(EngineDied):
                await pool.resume("a")
            assert pool.standings()[0].draining
            a.fault = None
            await pool.resume("a")
            assert states(pool)["a"] == "warming"
            await collect(pool, request)
            assert a.asked == 2

    run_virtually(scenario())


def test_a_drain_that_is_taken_back_ends_for_whoever_waits_and_the_answer_goes_on() -> None:
    async def scenario() -> None:
        a, b = Server(taking(5.0)), Server()
        async with EnginePool({"a": a, "b": b}) as pool, asyncio.TaskGroup() as group:
            held = group.create_task(collect(pool, of_home("a", "b")))
            await asyncio.sleep(1.0)
            draining = group.create_task(pool.drain("a"))
            await asyncio.sleep(1.0)
            a.fault = EngineUnavailable("busy")
            pool.resume_nowait("a")
            assert await draining is False
            assert now() == 2.0
            a.fault = None
            assert await pool.settles("a")
            assert states(pool)["a"] == "warming"
            assert text_of(await held) == "done"
            assert await pool.drain("a") is True

    run_virtually(scenario())


def test_a_replica_that_is_resumed_before_it_is_fit_is_asked_for_its_token_until_it_is() -> None:
    async def scenario() -> None:
        a, b = Server(), Server()
        async with EnginePool({"a": a, "b": b}) as pool:
            await pool.drain("a")
            a.fault = EngineUnavailable("it is being restarted")
            pool.resume_nowait("a")
            await collect(pool, of_home("a", "b"))
            await asyncio.sleep(5.0)
            assert (a.asked, b.asked, pool.standings()[0].state) == (0, 1, "open")
            a.fault = None
            assert await pool.settles("a")
            assert now() == 7.0  # the third pause
            await collect(pool, of_home("a", "b"))
            assert a.asked == 1
            a.fault = EngineUnavailable("again")
            for _ in range(3):  # an impatient operator
                pool.drain_nowait("a")
                pool.resume_nowait("a")
                await asyncio.sleep(0.5)
            before = len(a.requests)
            await asyncio.sleep(10.0)
            assert len(a.requests) == before + 3  # 1, 3 and 7 s after the last wish

    run_virtually(scenario())


def test_a_replica_that_is_drained_again_before_it_is_fit_is_asked_for_nothing_any_more() -> None:
    async def scenario() -> None:
        a, b = Server(), Server()
        a.fault = EngineUnavailable("not up yet")
        async with EnginePool({"a": a, "b": b}) as pool:
            assert await pool.drain("a")
            before = len(a.requests)
            await asyncio.sleep(100.0)
            assert len(a.requests) == before, "the proving that began with the pool"
            pool.resume_nowait("a")
            await asyncio.sleep(2.0)
            assert len(a.requests) == before + 2
            assert await pool.drain("a")
            a.fault = None
            await asyncio.sleep(100.0)
            assert (len(a.requests), states(pool)["a"]) == (before + 2, "open")
            pool.resume_nowait("a")
            assert await pool.settles("a")

    run_virtually(scenario())


@pytest.mark.parametrize("in_service", [True, False])
def test_a_drain_that_is_ordered_while_a_replica_is_brought_back_is_not_undone(in_service: bool) -> None:
    async def scenario() -> None:
        a, b = Server(), Server()
        async with EnginePool({"a": a, "b": b}) as pool:
            if not in_service:
                await pool.drain("a")
            a.token = taking(5.0)
            back = asyncio.ensure_future(pool.resume("a"))
            await asyncio.sleep(1.0)
            assert await pool.drain("a")
            assert await back is False
            assert (now(), pool.standings()[0].draining) == (5.0, True)
            await collect(pool, of_home("a", "b"))
            assert (a.asked, b.asked) == (0, 1)
            assert await pool.resume("a") is True
            await collect(pool, of_home("a", "b"))
            assert a.asked == 1

    run_virtually(scenario())


def test_a_replica_that_is_brought_back_is_not_asked_for_its_token_any_more() -> None:
    async def scenario() -> None:
        a = Server()
        async with EnginePool({"a": a, "b": Server()}) as pool:
            await pool.drain("a")
            a.fault = EngineUnavailable("it is being restarted")
            pool.resume_nowait("a")
            await asyncio.sleep(2.0)
            a.fault = None
            assert await pool.resume("a")
            before = len(a.requests)
            await asyncio.sleep(100.0)
            assert len(a.requests) == before

    run_virtually(scenario())


def test_a_drain_that_is_ordered_again_ends_no_wait_for_it() -> None:
    async def scenario() -> None:
        a, b = Server(taking(5.0)), Server()
        async with EnginePool({"a": a, "b": b}) as pool, asyncio.TaskGroup() as group:
            group.create_task(collect(pool, of_home("a", "b")))
            await asyncio.sleep(1.0)
            first = group.create_task(pool.drain("a"))
            await asyncio.sleep(1.0)
            assert await pool.drain("a") is True
            assert now() == 5.0
            assert await first is True

    run_virtually(scenario())


def test_resuming_what_is_in_service_and_draining_what_is_drained_change_nothing() -> None:
    async def scenario() -> None:
        a, b = Server(), Server()
        async with EnginePool({"a": a, "b": b}) as pool:
            pool.resume_nowait("a")
            assert pool.standings()[0].state == "closed"
            await pool.drain("a")
            pool.drain_nowait("a")
            assert await pool.settles("a")
            asked = len(a.requests)
            pool.resume_nowait("a")
            pool.resume_nowait("a")
            assert await pool.settles("a")
            assert len(a.requests) == asked + 1

    run_virtually(scenario())


def test_only_a_replica_in_service_without_others_is_the_last_one() -> None:
    async def scenario() -> None:
        a, b = Server(), Server()
        async with EnginePool({"a": a, "b": b}) as pool:
            assert not pool.is_last("a")
            await pool.drain("b")
            assert (pool.is_last("a"), pool.is_last("b")) == (True, False)
            await pool.drain("a")
            assert (pool.is_last("a"), pool.is_last("b")) == (False, False)

    run_virtually(scenario())


def test_the_places_of_a_replica_that_drains_are_given_to_nobody_and_who_waits_gets_another_s() -> None:
    async def scenario() -> None:
        a, b = Server(taking(2.0)), Server(taking(5.0))
        async with EnginePool({"a": a, "b": b}, limit=1) as pool, asyncio.TaskGroup() as group:
            for home, other in (("a", "b"), ("b", "a"), ("a", "b")):
                group.create_task(collect(pool, of_home(home, other)))
            await asyncio.sleep(1.0)
            assert [one.waiting for one in pool.standings()] == [1, 1]
            assert await pool.drain("a")
            assert (now(), pool.waiting) == (2.0, 1)
        assert (a.asked, b.asked, now()) == (1, 2, 10.0)

    run_virtually(scenario())


def test_a_server_that_dies_at_its_first_request_is_refused_at_the_start_and_let_in_when_it_is_fit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        a, b = Server(), Server()
        a.fault = EngineDied("no kernel for this format")
        with caplog.at_level(logging.WARNING):
            async with EnginePool({"a": a, "b": b}) as pool:
                for number in range(4):
                    await collect(pool, of_home("a", "b", number=number))
                assert (a.asked, b.asked) == (0, 4)
                a.fault = None
                await asyncio.sleep(31.0)
                assert states(pool)["a"] == "warming"
                await collect(pool, of_home("a", "b"))
                assert a.asked == 1
        assert [record.message for record in caplog.records] == [
            "the model server a gets no requests: no kernel for this format",
            "the model server a answers again",
        ]

    run_virtually(scenario())


def test_a_model_that_refuses_so_small_a_limit_may_say_a_few_tokens_instead() -> None:
    def script(request: ModelRequest) -> Script:
        if request.max_tokens == 1:
            raise EngineRejected("max_tokens is too small")
        return "Hello you"

    async def scenario() -> None:
        async with EnginePool({"a": ScriptedEngine(script)}) as pool:
            assert text_of(await collect(pool)) == "Hello you"

    run_virtually(scenario())


def test_a_replica_that_was_drained_before_it_was_fit_stays_out_until_it_is_resumed() -> None:
    async def scenario() -> None:
        a, b = Server(), Server()
        a.fault = EngineDied("no kernel for this format")
        async with EnginePool({"a": a, "b": b}) as pool:
            await pool.drain("a")
            a.fault = None
            await asyncio.sleep(31.0)
            await collect(pool, of_home("a", "b"))
            assert (a.asked, b.asked) == (0, 1)
            await pool.resume("a")
            await collect(pool, of_home("a", "b"))
            assert a.asked == 1

    run_virtually(scenario())


def test_a_pool_in_which_nobody_is_fit_does_not_start_unless_it_may() -> None:
    async def scenario() -> None:
        a, b = Server(), Server()
        a.fault, b.fault = EngineDied("no kernel for this format"), Hang()
        with pytest.raises(EngineUnavailable, match=r"a: no kernel.*; b: .*one token within 5 s"):
            async with EnginePool({"a": a, "b": b}, warm_up=5.0):
                raise AssertionError("it started")
        async with EnginePool({"a": a, "b": b}, warm_up=5.0, must_start=False, restart_wait=60.0) as pool:
            b.fault = None
            assert text_of(await collect(pool)) == "Hello you"

    run_virtually(scenario())


# What it is


def test_a_pool_can_what_every_replica_can_that_is_well() -> None:
    async def scenario() -> None:
        more = Capabilities(tools=True, json_schema=True, raw_prompt=True, context_tokens=4096, slots=3)
        less = Capabilities(tools=True, embeddings=True, context_tokens=1024)
        a, b = Server(capabilities=more), Server(capabilities=less)
        async with EnginePool({"a": a, "b": b}) as pool:
            both = pool.capabilities
            assert (both.tools, both.json_schema, both.embeddings) == (True, False, False)
            assert (both.context_tokens, both.slots) == (1024, 3 + 64)
            await pool.drain("b")
            assert pool.capabilities.json_schema

    run_virtually(scenario())


def test_replicas_of_different_models_and_no_replicas_are_no_pool() -> None:
    with pytest.raises(ConfigError, match="one model"):
        EnginePool({"a": Server(model="small"), "b": Server(model="large")})
    with pytest.raises(ConfigError, match="one model"):
        EnginePool({})


class Embedding(Server):
    """Its embeddings take `seconds`, and fail only after them."""

    def __init__(self, script: Script = "Hello you", *, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.embedded = 0
        super().__init__(script, capabilities=Capabilities(embeddings=True))

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        self.embedded += 1
        await asyncio.sleep(self.seconds)
        if isinstance(self.fault, EngineError):
            raise self.fault
        return [[float(len(text))] for text in texts]


def test_embeddings_are_made_by_a_replica_that_can_be_reached() -> None:
    async def scenario() -> None:
        a, b = Embedding(), Embedding()
        async with EnginePool({"a": a, "b": b}) as pool:
            a.fault = EngineUnavailable("refused")
            assert await pool.embed(["one", "three"]) == [[3.0], [5.0]]
            a.fault = None
            for name in ("a", "b"):
                await pool.drain(name)
            with pytest.raises(EngineUnavailable):  # a drained one may be about to stop
                await pool.embed(["one"])
            await pool.resume("b")
            assert await pool.embed(["one"]) == [[3.0]]
            b.fault = EngineUnavailable("refused")
            with pytest.raises(EngineUnavailable):
                await pool.embed(["one"])
        async with EnginePool({"a": Server()}) as pool:
            with pytest.raises(EngineRejected):
                await pool.embed(["one"])

    run_virtually(scenario())


@pytest.mark.parametrize(("answer", "embedding"), [(0.0, 5.0), (2.0, 5.0), (5.0, 2.0)])
def test_a_drain_waits_for_embeddings_as_for_answers(answer: float, embedding: float) -> None:
    async def scenario() -> None:
        a = Embedding(taking(answer), seconds=embedding)
        async with EnginePool({"a": a, "b": Embedding()}) as pool, asyncio.TaskGroup() as group:
            vectors = group.create_task(pool.embed(["one"]))
            await asyncio.sleep(0)
            if answer:
                group.create_task(collect(pool, of_home("a", "b")))
                await asyncio.sleep(0)
            pool.drain_nowait("a")
            (standing, _) = pool.standings()
            assert (standing.active, standing.draining) == (1 + (answer > 0), True)
            assert await pool.settles("a")
            assert now() == 5.0
            assert await vectors == [[3.0]]
            assert pool.standings()[0].active == 0

    run_virtually(scenario())


@pytest.mark.parametrize("leaves", [True, False])
def test_embeddings_that_fail_or_are_given_up_hold_no_drain(leaves: bool) -> None:
    async def scenario() -> None:
        a = Embedding(seconds=5.0)
        async with EnginePool({"a": a, "b": Embedding()}) as pool:
            vectors = asyncio.ensure_future(pool.embed(["one"]))
            await asyncio.sleep(1.0)
            draining = asyncio.ensure_future(pool.drain("a"))
            if leaves:
                vectors.cancel()
            else:
                a.fault = EngineRejected("too long")
            assert await draining
            assert now() == (1.0 if leaves else 5.0)
            with pytest.raises(asyncio.CancelledError if leaves else EngineRejected):
                await vectors

    run_virtually(scenario())


def test_embeddings_go_to_no_replica_that_was_drained_while_another_failed() -> None:
    async def scenario() -> None:
        a, b, c = Embedding(seconds=5.0), Embedding(), Embedding()
        async with EnginePool({"a": a, "b": b, "c": c}) as pool:
            vectors = asyncio.ensure_future(pool.embed(["one"]))
            await asyncio.sleep(1.0)
            a.fault = EngineDied("gone")
            await pool.drain("b")
            assert await vectors == [[3.0]]
            assert (a.embedded, b.embedded, c.embedded) == (1, 0, 1)

    run_virtually(scenario())


# Whatever happens


@pytest.mark.parametrize("seed", range(8))
def test_whatever_fails_and_whoever_leaves_every_request_ends_and_every_place_is_free_again(seed: int) -> None:
    async def scenario() -> None:
        dice = random.Random(seed)
        replicas = {name: Server(taking(dice.uniform(0.1, 2.0))) for name in "abc"}

        async def weather() -> None:
            for _ in range(60):
                await asyncio.sleep(dice.uniform(0.0, 1.0))
                faults = (None, None, EngineUnavailable("x"), EngineDied("x"), EngineOverloaded("x", retry_after=2.0))
                dice.choice([*replicas.values()]).fault = dice.choice(faults)
            for replica in replicas.values():
                replica.fault = None

        async def client(number: int) -> None:
            await asyncio.sleep(dice.uniform(0.0, 30.0))
            asked = msgspec.structs.replace(REQUEST, session=f"s{number % 20}", priority=dice.choice((0, 0, 3)))
            with contextlib.suppress(EngineError, TimeoutError):
                async with asyncio.timeout(dice.choice((0.5, 5.0, 300.0))):
                    await collect(pool, asked)

        async with EnginePool(replicas, limit=3) as pool:
            async with asyncio.timeout(1000), asyncio.TaskGroup() as group:
                group.create_task(weather())
                for number in range(200):
                    group.create_task(client(number))
            assert (pool.waiting, [one.active for one in pool.standings()]) == (0, [0, 0, 0])
            assert [replica.open_now for replica in replicas.values()] == [0, 0, 0]
            await asyncio.sleep(60.0)
            for number in range(30):
                assert text_of(await collect(pool, msgspec.structs.replace(REQUEST, session=f"t{number}"))) == "done"
            assert set(states(pool).values()) <= {"closed", "warming"}

    run_virtually(scenario())
