import asyncio
import threading
from collections.abc import AsyncGenerator

import pytest

from harness import run_async, until
from headrace.agent.loop import Agent
from headrace.agent.port import RunContext
from headrace.engine.port import Chunk, Finish, ModelRequest, Text, ToolCallPart
from headrace.engine.scripted import Hang, Script, ScriptedEngine
from headrace.events import (
    Event,
    SteerApplied,
    SteerReceived,
    TextDelta,
    ToolCallEnded,
    ToolProgress,
    ToolResult,
    TurnFinished,
)
from headrace.messages import Message
from headrace.state import conversation
from headrace.tools.function import tool
from headrace.tools.port import ToolContext
from recording import LiveEngine, Recording, assert_well_formed, begin, tool_call

ran: list[str] = []


@tool(effect="none")
async def quick() -> str:
    """Quick."""
    ran.append("quick")
    await asyncio.sleep(0)
    return "q"


@tool(effect="none")
async def slow(context: ToolContext) -> str:
    """Slow."""
    ran.append("slow")
    for n in range(5):
        context.progress(n)
        await asyncio.sleep(0)
    return "s"


@tool(effect="none")
async def waits() -> None:
    """Waits for ever."""
    await asyncio.Event().wait()


def script(request: ModelRequest) -> Script:
    if any(m.role == "tool" for m in request.messages):
        return "All done now."
    return [
        Text("Let "),
        Text("me. "),
        tool_call(0, "quick"),
        ToolCallPart(index=1, call_id="c1", name="slow", arguments="{"),
        ToolCallPart(index=1, arguments="}"),
        tool_call(2, "quick"),
    ]


AGENT = Agent("a", tools=[quick, slow, waits])


class CancelsAt(Recording):
    """Cancels the run's own task in the middle of its nth record."""

    def __init__(self, earlier: list[Event], at: int) -> None:
        super().__init__(earlier)
        self.at = at
        self.context: RunContext
        self.task: asyncio.Task[object]
        self.cancelling = True
        self.ran_before: int | None = None

    def emit(self, event: Event) -> None:
        super().emit(event)
        if self.seq == self.at:
            self.context.cancelling = self.cancelling
            self.task.cancel()


async def cancelled_at(at: int, *, cancelling: bool) -> CancelsAt:
    engine = ScriptedEngine(script)
    plain, _ = begin(engine)
    out = CancelsAt(plain.events, at)
    out.cancelling = cancelling
    out.context = RunContext(state=out.state(), history=(), out=out, engine=engine)
    async with asyncio.TaskGroup() as group:
        out.task = group.create_task(AGENT.run(out.context))
    assert out.task.cancelled()
    assert engine.open_now == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return out


def length_of_run() -> int:
    async def run() -> int:
        out, context = begin(ScriptedEngine(script))
        await AGENT.run(context)
        return len(out.events)

    return run_async(run())


LENGTH = length_of_run()


@pytest.mark.parametrize("at", range(2, LENGTH))
def test_cancelled_after_any_record_a_run_closes_every_call_and_turn(at: int) -> None:
    out = run_async(cancelled_at(at, cancelling=True))
    assert_well_formed(out.events)
    answered = [m.call_id for m in conversation(out.state()) if m.role == "tool"]
    asked = [c.call_id for m in conversation(out.state()) for c in m.tool_calls]
    assert sorted(str(call_id) for call_id in answered) == sorted(asked)


@pytest.mark.parametrize("at", range(2, LENGTH))
def test_handed_over_after_any_record_a_run_goes_on_elsewhere_as_if_nothing_had_happened(at: int) -> None:
    out = run_async(cancelled_at(at, cancelling=False))
    assert "cancelled" not in [turn.finish_reason for turn in out.of(TurnFinished)]
    assert "tool_cancelled" not in [result.error.code for result in out.of(ToolResult) if result.error]

    async def elsewhere() -> Recording:
        again, context = begin(ScriptedEngine(script), earlier=out.events[1:])
        finished = await AGENT.run(context)
        assert finished.output == "All done now."
        return again

    assert_well_formed(run_async(elsewhere()).events)


def test_no_tool_starts_after_a_cancel() -> None:
    async def run() -> None:
        ran.clear()
        out = await cancelled_at(3, cancelling=True)  # the first word
        assert out.of(TextDelta)
        assert ran == []

    run_async(run())


def test_what_was_said_before_a_cancel_stays_and_later_runs_read_it() -> None:
    async def run() -> Recording:
        engine = ScriptedEngine([Text("Half an "), Text("answer"), Hang()])
        out, context = begin(engine)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(Agent("a").run(context))
            await until(lambda: len(out.of(TextDelta)) == 2)
            context.cancelling = True
            task.cancel()
        assert engine.open_now == 0
        return out

    out = run_async(run())
    assert out.of(TurnFinished)[0].finish_reason == "cancelled"
    assert conversation(out.state())[-1] == Message(role="assistant", content="Half an answer")


def test_cancelling_during_a_sync_tool_waits_for_it_or_says_it_was_abandoned() -> None:
    go_on = threading.Event()

    @tool(effect="none")
    def stubborn(context: ToolContext) -> None:
        context.progress("begun")
        go_on.wait(20)

    async def run() -> Recording:
        out, context = begin(ScriptedEngine([tool_call(0, "stubborn")]))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(Agent("a", tools=[stubborn]).run(context))
            await until(lambda: out.of(ToolProgress))
            context.cancelling = True
            task.cancel()
        go_on.set()
        return out

    (result,) = run_async(run()).of(ToolResult)
    assert result.error
    assert result.error.code == "tool_cancelled"
    assert "abandoned" in result.error.message


def steer(mode: str, text: str = "In French.") -> SteerReceived:
    return SteerReceived(steer_id="s1", text=text, mode=mode)  # type: ignore[arg-type]


def test_an_interrupt_cuts_the_model_keeps_what_it_said_and_is_read_by_the_next_turn() -> None:
    def first_hangs(request: ModelRequest) -> Script:
        return "Bonjour." if len(request.messages) > 1 else [Text("Hello"), Hang()]

    async def run() -> None:
        engine = ScriptedEngine(first_hangs)
        out, context = begin(engine)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(Agent("a").run(context))
            await until(lambda: out.of(TextDelta))
            context.steering.put_nowait(steer("interrupt"))
        assert [turn.finish_reason for turn in out.of(TurnFinished)] == ["interrupted", "stop"]
        assert engine.requests[1].messages == (
            Message(role="user", content="Hi"),
            Message(role="assistant", content="Hello"),
            Message(role="user", content="In French."),
        )
        assert [applied.steer_id for applied in out.of(SteerApplied)] == ["s1"]
        assert engine.open_now == 0
        assert task.result().output == "Bonjour."
        assert_well_formed(out.events)

    run_async(run())


def test_an_interrupt_closes_a_call_that_was_not_whole_and_completes_one_that_was() -> None:
    def first_hangs(request: ModelRequest) -> Script:
        if len(request.messages) > 1:
            return "ok"
        return [tool_call(0, "quick"), ToolCallPart(index=1, call_id="c1", name="quick", arguments="{"), Hang()]

    async def run() -> None:
        out, context = begin(ScriptedEngine(first_hangs))
        async with asyncio.TaskGroup() as group:
            group.create_task(AGENT.run(context))
            await until(lambda: len(out.calls()) == 2)
            context.steering.put_nowait(steer("interrupt"))
        assert_well_formed(out.events)
        assert {out.number(r.call_id): r.error.code if r.error else r.result for r in out.of(ToolResult)} == {
            0: "q",
            1: "tool_cancelled",
        }

    run_async(run())


def test_an_interrupt_never_cuts_a_running_tool() -> None:
    go_on = asyncio.Event()

    @tool(effect="none")
    async def works(context: ToolContext) -> str:
        context.progress(1)
        await go_on.wait()
        return "worked"

    async def run() -> None:
        engine = ScriptedEngine(scripts=[[tool_call(0, "works")], "ok"])
        out, context = begin(engine)
        async with asyncio.TaskGroup() as group:
            group.create_task(Agent("a", tools=[works]).run(context))
            await until(lambda: out.of(ToolProgress) and out.of(TurnFinished))
            context.steering.put_nowait(steer("interrupt"))
            await asyncio.sleep(0)
            go_on.set()
        assert out.of(ToolResult)[0].result == "worked"
        assert [m.role for m in engine.requests[1].messages] == ["user", "assistant", "tool", "user"]

    run_async(run())


def test_a_steer_for_the_next_turn_on_what_was_the_last_one_adds_a_turn_even_at_the_limit() -> None:
    async def run() -> None:
        engine = ScriptedEngine(scripts=["Hello.", "Bonjour."])
        out, context = begin(engine)

        class Steers(Recording):
            def emit(self, event: Event) -> None:
                super().emit(event)
                if self.seq == 3:
                    super().emit(steer("next_turn"))
                    context.steering.put_nowait(steer("next_turn"))

        context = RunContext(state=out.state(), history=(), out=(steered := Steers(out.events)), engine=engine)
        finished = await Agent("a", max_turns=1).run(context)
        assert (finished.status, finished.output) == ("completed", "Bonjour.")
        assert [turn.finish_reason for turn in steered.of(TurnFinished)] == ["stop", "stop"]
        assert conversation(steered.state()) == (
            *engine.requests[1].messages,
            Message(role="assistant", content="Bonjour."),
        )

    run_async(run())


def test_a_steer_that_waits_from_the_start_is_read_by_the_first_turn() -> None:
    async def run() -> None:
        engine = ScriptedEngine("Bonjour.")
        out, context = begin(engine)
        context.steering.put_nowait(steer("next_turn"))
        await Agent("a").run(context)
        assert engine.requests[0].messages[-1].content == "In French."
        types = out.types()
        assert types.index("steer.applied") < types.index("turn.started")

    run_async(run())


def test_an_interrupt_before_the_first_token_also_cuts() -> None:
    async def speak(request: ModelRequest) -> AsyncGenerator[Chunk, None]:
        if len(request.messages) == 1:
            await asyncio.Event().wait()
        yield Text("ok")
        yield Finish(reason="stop")

    async def run() -> None:
        engine = LiveEngine(speak)
        out, context = begin(engine)
        async with asyncio.TaskGroup() as group:
            group.create_task(Agent("a").run(context))
            await until(lambda: engine.open_now)
            context.steering.put_nowait(steer("interrupt"))
            context.steering.put_nowait(steer("interrupt", "And short."))
        assert [turn.finish_reason for turn in out.of(TurnFinished)] == ["interrupted", "stop"]
        assert len(engine.requests[1].messages) == 3

    run_async(run())


def test_two_cancels_are_one() -> None:
    async def run() -> Recording:
        out, context = begin(ScriptedEngine([tool_call(0, "waits")]))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(AGENT.run(context))
            await until(lambda: out.of(ToolCallEnded) and out.of(TurnFinished))
            context.cancelling = True
            task.cancel()
            task.cancel()
        return out

    out = run_async(run())
    assert_well_formed(out.events)
    assert len(out.of(ToolResult)) == 1


def test_an_async_tool_that_cleans_up_sees_that_it_was_cancelled() -> None:
    seen: list[bool] = []

    @tool(effect="none")
    async def cleans_up(context: ToolContext) -> None:
        seen.append(context.cancelled)
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(context.cancelled)

    async def run() -> None:
        _, context = begin(ScriptedEngine([tool_call(0, "cleans_up")]))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(Agent("a", tools=[cleans_up]).run(context))
            await until(lambda: seen)
            context.cancelling = True
            task.cancel()

    run_async(run())
    assert seen == [False, True]
