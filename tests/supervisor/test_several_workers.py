"""Several supervisors on one log: who works on what, and what happens when one leaves, dies or has lost a run."""

import asyncio
from collections.abc import Sequence

from harness import run_async, until
from headrace import Agent
from headrace import events as e
from headrace.agent.port import RunContext
from headrace.engine.port import Text
from headrace.engine.scripted import Hang, ScriptedEngine
from headrace.errors import LogUnavailable
from headrace.events import InputRequested, RunFinished, TextDelta
from headrace.log.memory import MemoryLog
from headrace.log.ports import Claim
from headrace.state import RunState
from serving import FunctionAgent, Gate
from shared_log import Shared

DONE = RunFinished(status="completed")


async def nothing(context: RunContext) -> RunFinished:
    return DONE


async def asking(context: RunContext) -> RunFinished:
    await context.ask(InputRequested(input_id="q", kind="question"))
    return DONE


def test_a_run_that_its_worker_leaves_goes_on_at_once_at_another() -> None:
    async def scenario() -> None:
        gate = Gate()
        agent = FunctionAgent(gate, resumable=True)
        async with Shared() as shared:
            first = await shared.worker("first", agent)
            run_id = await shared.start(first)
            await gate.entered.wait()
            await shared.worker("second", agent)
            assert (await shared.log.head(run_id)).seq == 2
            gate.entered.clear()
            await first.drain(0)
            await gate.entered.wait()
            gate.open.set()
            assert (await shared.ended(run_id))[1:] == [
                TextDelta(text="before "),
                e.RunReleased(worker="first"),
                e.RunRecovered(worker="second", after_seq=3),
                TextDelta(text="before "),
                TextDelta(text="after"),
                RunFinished(status="completed", output="before after"),
            ]
            assert first.active == 0

    run_async(scenario())


def test_a_run_that_another_has_claimed_is_stopped_at_once_its_models_stream_is_closed_and_nothing_is_written() -> None:
    async def scenario() -> None:
        engine = ScriptedEngine([Text("One moment. "), Hang()])
        async with Shared() as shared:
            worker = await shared.worker("first", Agent("agent", engine=engine))
            run_id = await shared.start(worker)
            await until(lambda: engine.open_now == 1)
            before = await shared.kinds(run_id)
            await shared.log.claim(run_id)
            await until(lambda: worker.active == 0)
            assert engine.open_now == 0
            await worker.drain(0)
            assert await shared.kinds(run_id) == before

    run_async(scenario())


def test_a_run_that_is_lost_while_it_waits_for_a_place_leaves_the_queue() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with Shared() as shared:
            worker = await shared.worker("first", FunctionAgent(gate), max_active=1)
            await shared.start(worker)
            waiting, last = await shared.start(worker), await shared.start(worker)
            await shared.log.claim(waiting)
            assert worker.queued == 1
            gate.open.set()
            await shared.ended(last)
            assert await shared.kinds(waiting) == ["run.started", "run.queued"]

    run_async(scenario())


def test_a_run_that_is_cancelled_while_it_waits_for_a_place_ends_at_once_and_those_behind_it_move_up() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with Shared() as shared:
            worker = await shared.worker("first", FunctionAgent(gate), max_active=1)
            await shared.start(worker)
            waiting, last = await shared.start(worker), await shared.start(worker)
            await shared.log.append(waiting, [e.CancelRequested(), e.CancelRequested()])
            ended = await shared.ended(waiting)
            assert isinstance(ended[-1], RunFinished)
            assert ended[-1].status == "cancelled"
            await until(lambda: (worker.active, worker.queued) == (1, 1))
            assert [event.position for event in await shared.events(last) if isinstance(event, e.RunQueued)] == [2, 1]
            gate.open.set()
            await shared.ended(last)

    run_async(scenario())


def test_a_worker_adopts_the_oldest_runs_and_no_more_than_it_has_room_for() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with Shared() as shared:
            run_ids = [await shared.leave() for _ in range(10)]
            first = await shared.worker("first", FunctionAgent(gate), max_active=3)
            second = await shared.worker("second", FunctionAgent(gate), max_active=4)
            assert [(w.active, w.queued) for w in (first, second)] == [(3, 0), (4, 0)]
            await until(lambda: all(shared.log.recent(run_id, 1) for run_id in run_ids[:7]))
            assert not any(shared.log.recent(run_id, 1) for run_id in run_ids[7:])
            gate.open.set()
            for run_id in run_ids:
                assert isinstance((await shared.ended(run_id))[-1], RunFinished)

    run_async(scenario())


def test_runs_that_were_left_come_before_those_that_wait_for_a_place() -> None:
    async def scenario() -> None:
        begun: list[str] = []
        gate = asyncio.Event()

        async def note(context: RunContext) -> RunFinished:
            begun.append(context.question)
            await gate.wait()
            return DONE

        async with Shared() as shared:
            for name in ("old", "older than new", "also older"):
                await shared.leave(name)
            worker = await shared.worker("first", FunctionAgent(note), max_active=1)
            last = await shared.start(worker, "new")
            gate.set()
            await shared.ended(last)
        assert begun == ["old", "older than new", "also older", "new"]

    run_async(scenario())


def test_runs_that_wait_for_a_person_leave_room_to_adopt_others() -> None:
    async def scenario() -> None:
        async with Shared() as shared:
            for _ in range(5):
                await shared.leave()
            worker = await shared.worker("first", FunctionAgent(asking), max_active=1)
            await until(lambda: worker.active == 5)

    run_async(scenario())


def test_a_drain_hands_over_what_waits_for_a_place_at_once_and_lets_the_others_finish() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with Shared() as shared:
            leaving = await shared.worker("leaving", FunctionAgent(gate), max_active=1)
            staying, *waiting = [await shared.start(leaving) for _ in range(3)]
            await gate.entered.wait()
            await shared.worker("other", FunctionAgent(nothing))
            draining = asyncio.create_task(leaving.drain(10))
            for run_id in waiting:
                kinds = [e.event_type(event) for event in await shared.ended(run_id)]
                assert kinds == ["run.started", "run.queued", "run.released", "run.recovered", "run.finished"]
            assert not (await shared.log.head(staying)).closed
            gate.open.set()
            await draining
            assert await shared.kinds(staying) == ["run.started", "text.delta", "text.delta", "run.finished"]

    run_async(scenario())


class Stubborn:
    """An agent that is never done but for an interruption, after which it cleans up until the test lets it."""

    def __init__(self, *, ignored: int = 0) -> None:
        self.interrupted = 0
        self.cleaned = asyncio.Event()
        self.is_clean = False
        self._ignored = ignored

    async def __call__(self, context: RunContext) -> RunFinished:
        context.emit(TextDelta(text="begun"))
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.interrupted += 1
                if self.interrupted > self._ignored:
                    break
        try:
            await self.cleaned.wait()
        except asyncio.CancelledError:
            self.interrupted += 1
            raise
        self.is_clean = True
        raise asyncio.CancelledError


def test_a_run_that_is_left_is_interrupted_once_and_nothing_cuts_its_cleaning_up() -> None:
    """Neither the end of the server after its drain, nor a client that cancels it, nor that another worker has it."""

    async def scenario() -> None:
        agent = Stubborn()
        async with Shared() as shared:
            leaving = await shared.worker("leaving", FunctionAgent(agent))
            run_id = await shared.start(leaving)
            await begun(shared, run_id)
            await leaving.drain(0)
            await until(lambda: agent.interrupted)
            await shared.log.append(run_id, [e.CancelRequested()])
            await leaving.drain(0)
            await shared.log.claim(run_id)
            await asyncio.sleep(0)
            agent.cleaned.set()
            await until(lambda: leaving.active == 0)
            assert agent.is_clean
            assert agent.interrupted == 1

    run_async(scenario())


def test_a_run_that_ignores_a_clients_cancel_is_interrupted_again_when_it_is_left() -> None:
    async def scenario() -> None:
        agent = Stubborn(ignored=1)
        agent.cleaned.set()
        async with Shared() as shared:
            leaving = await shared.worker("leaving", FunctionAgent(agent))
            run_id = await shared.start(leaving)
            await begun(shared, run_id)
            for _ in range(2):
                await shared.log.append(run_id, [e.CancelRequested()])
            await until(lambda: agent.interrupted)
            await leaving.drain(0)
            await until(lambda: leaving.active == 0)
            assert agent.interrupted == 2

    run_async(scenario())


async def begun(shared: Shared, run_id: str) -> None:
    await until(lambda: b"begun" in b"".join(shared.log.recent(run_id, 0) or ()))


class Between(MemoryLog):
    """A request comes in the very moment after the run was read."""

    request: e.Request | None = None

    async def state(self, run_id: str) -> RunState:
        state = await super().state(run_id)
        request, self.request = self.request, None
        if request is not None:
            await self.append(run_id, [request])
        return state


def test_a_request_that_comes_while_a_run_is_taken_over_is_not_lost() -> None:
    async def scenario(request: e.Request) -> Sequence[e.Event]:
        async with Shared(Between()) as shared:
            run_id = await shared.leave()
            shared.log.request = request  # type: ignore[attr-defined]
            await shared.worker("first", FunctionAgent(asking))
            return await shared.ended(run_id)

    async def both() -> None:
        events = await scenario(e.CancelRequested())
        assert isinstance(events[-1], RunFinished)
        assert events[-1].status == "cancelled"
        events = await scenario(e.InputReceived(input_id="q", value="yes"))
        assert events[-1] == DONE

    run_async(both())


class Away(MemoryLog):
    """Does not answer the first times."""

    refusals = 0

    @property
    def adopt_every_s(self) -> float | None:
        return 0.01

    async def state(self, run_id: str) -> RunState:
        self._refuse()
        return await super().state(run_id)

    async def adopt(self, limit: int) -> Sequence[Claim]:
        self._refuse()
        return await super().adopt(limit)

    def _refuse(self) -> None:
        if self.refusals:
            self.refusals -= 1
            raise LogUnavailable("not now")


def test_a_log_that_is_away_is_asked_again_and_no_run_fails_for_it() -> None:
    async def scenario() -> None:
        async with Shared(Away()) as shared:
            run_id = await shared.leave()
            shared.log.refusals = 3  # type: ignore[attr-defined]
            worker = await shared.worker("first", FunctionAgent(nothing))
            assert worker.active == 0
            assert (await shared.ended(run_id))[-1] == DONE
            shared.log.refusals = 2  # type: ignore[attr-defined]
            assert (await shared.ended(await shared.start(worker)))[-1] == DONE

    run_async(scenario())


def test_the_tenant_of_an_adopted_run_is_the_one_in_the_log() -> None:
    async def scenario() -> None:
        tenants: list[str] = []

        async def note(context: RunContext) -> RunFinished:
            tenants.append(context.tenant)
            return DONE

        async with Shared() as shared:
            run_id = await shared.leave(tenant="acme")
            await shared.worker("first", FunctionAgent(note))
            await shared.ended(run_id)
        assert tenants == ["acme"]

    run_async(scenario())
