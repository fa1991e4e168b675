"""A worker dies after any record at all, and another goes on."""

import asyncio

import pytest

from harness import run_async, until
from headrace.agent.loop import Agent
from headrace.agent.resume import next_step, standing
from headrace.engine.port import Capabilities, Finish, ModelRequest, Text, Thinking
from headrace.engine.scripted import Script, ScriptedEngine
from headrace.events import (
    Event,
    InputReceived,
    InputRequested,
    RunFinished,
    SteerApplied,
    SteerReceived,
    TextDelta,
    TextRetracted,
    ToolCallEnded,
    ToolCallStarted,
    ToolResult,
    TurnFinished,
    TurnStarted,
)
from headrace.messages import Message, Usage
from headrace.state import Turn, conversation
from headrace.tools.function import tool
from recording import Recording, assert_well_formed, begin, tool_call

ran: list[str] = []


@tool(effect="none")
async def look(what: str) -> str:
    """Look something up."""
    ran.append(f"look {what}")
    return f"{what}: seen"


@tool(effect="once")
async def pay(amount: int) -> str:
    """Pay."""
    ran.append(f"pay {amount}")
    return "paid"


@tool(effect="once", approval=True)
async def delete(name: str) -> str:
    """Delete, if somebody agrees."""
    ran.append(f"delete {name}")
    return "gone"


def script(request: ModelRequest) -> Script:
    """Three turns; which one is asked for is read from the prompt, so a resumed run must build the same prompt."""
    said = [m for m in request.messages if m.role == "assistant"]
    if not said:
        return [
            Thinking("hm"),
            Text("First "),
            Text("look. "),
            tool_call(0, "look", '{"what":"a"}'),
            tool_call(1, "pay", '{"amount":3}'),
            tool_call(2, "look", "broken"),
        ]
    if len(said) == 1:
        return [Text("Then "), tool_call(0, "look", '{"what":"b"}')]
    return [Text("The "), Text("end."), Finish(reason="stop", usage=Usage(input_tokens=1, output_tokens=2))]


AGENT = Agent("a", "Rules.", tools=[look, pay, delete])


def play(earlier: list[Event], engine: ScriptedEngine | None = None) -> tuple[Recording, RunFinished, ScriptedEngine]:
    engine = engine or ScriptedEngine(script)

    async def run() -> tuple[Recording, RunFinished, ScriptedEngine]:
        ran.clear()
        out, context = begin(engine, earlier=earlier)
        return out, await AGENT.run(context), engine

    return run_async(run())


FULL, FINISHED, _ = play([])


@pytest.mark.parametrize("upto", range(1, len(FULL.events) + 1))
def test_a_run_goes_on_from_after_any_record(upto: int) -> None:
    earlier = FULL.events[1:upto]
    out, finished, engine = play(earlier)
    assert_well_formed(out.events)
    assert finished.output == "The end."
    assert finished.status == "completed"

    before = {event.call_id: event for event in earlier if isinstance(event, ToolResult)}
    for result in out.of(ToolResult)[len(before) :]:
        assert result.call_id not in before
    paying = {call.call_id for call in out.of(ToolCallStarted) if call.name == "pay"}
    ended_now = [e for e in out.events[upto:] if isinstance(e, ToolCallEnded) and e.call_id in paying]
    assert ran.count("pay 3") == len(ended_now)  # nobody pays for a call that another worker has begun
    if engine.requests:
        read = engine.requests[-1].messages
        assert read[0] == Message(role="system", content="Rules.")
        assert read[1:] == conversation(out.state())[: len(read) - 1]


@pytest.mark.parametrize("upto", range(1, len(FULL.events) + 1))
def test_only_a_turn_that_made_no_call_is_asked_again(upto: int) -> None:
    earlier = FULL.events[1:upto]
    begun = [event.turn for event in earlier if isinstance(event, TurnStarted)]
    ended = [event.turn for event in earlier if isinstance(event, TurnFinished)]
    bound = (
        any(
            isinstance(event, ToolCallEnded | ToolResult)
            for event in earlier[earlier.index(event_of(earlier, begun)) :]
        )
        if begun
        else False
    )
    spoke = bool(begun) and any(
        type(event).__name__ in ("TextDelta", "ThinkingDelta")
        for event in earlier[earlier.index(event_of(earlier, begun)) :]
    )
    out, _, _ = play(earlier, ScriptedEngine(script, capabilities=Capabilities(tools=True)))
    cut = len(begun) > len(ended)
    assert out.of(TextRetracted) == (
        [TextRetracted(turn=begun[-1], reason="recovered")] if cut and not bound and spoke else []
    )


def event_of(earlier: list[Event], begun: list[int]) -> Event:
    return next(e for e in earlier if isinstance(e, TurnStarted) and e.turn == begun[-1])


def test_an_effect_that_may_have_happened_is_reported_and_not_repeated() -> None:
    cut = next(at for at, e in enumerate(FULL.events) if isinstance(e, ToolCallEnded) and e.arguments == {"amount": 3})
    out, _, engine = play(FULL.events[1 : cut + 1])
    unknown = [result for result in out.of(ToolResult) if result.source == "unknown_outcome"]
    assert [result.error.code for result in unknown if result.error] == ["unknown_outcome"]
    assert any("not known" in m.content for m in engine.requests[0].messages if m.role == "tool")


def test_a_run_whose_last_answer_is_recorded_asks_nobody_again() -> None:
    _, finished, engine = play(FULL.events[1:])
    assert engine.requests == []
    assert finished.output == FINISHED.output
    assert finished.usage == FINISHED.usage
    assert ran == []


def delete_script(request: ModelRequest) -> Script:
    if any(m.role == "tool" for m in request.messages):
        return "ok"
    return [tool_call(0, "delete", '{"name":"x"}')]


def test_an_approval_that_was_given_before_a_restart_counts_and_one_still_open_is_waited_for() -> None:
    async def first() -> list[Event]:
        ran.clear()
        out, context = begin(ScriptedEngine(delete_script))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(AGENT.run(context))
            await until(lambda: out.of(InputRequested))
            task.cancel()
        assert ran == []
        return out.events[1:]

    async def second(earlier: list[Event]) -> Recording:
        out, context = begin(ScriptedEngine(delete_script), earlier=earlier)
        async with asyncio.TaskGroup() as group:
            group.create_task(AGENT.run(context))
            await asyncio.sleep(0)
            context.answer_nowait(InputReceived(input_id=out.of(InputRequested)[0].input_id, value=True))
        return out

    earlier = run_async(first())
    out = run_async(second(earlier))
    assert ran == ["delete x"]
    assert len(out.of(InputRequested)) == 1
    assert out.of(ToolResult)[0].result == "gone"
    assert_well_formed(out.events)

    ran.clear()
    answered = [*earlier, InputReceived(input_id=out.of(InputRequested)[0].input_id, value=True)]
    run_async(run_again(answered))
    assert ran == []  # it may have begun after the answer: nobody runs it twice in silence


async def run_again(earlier: list[Event]) -> Recording:
    out, context = begin(ScriptedEngine(delete_script), earlier=earlier)
    await AGENT.run(context)
    return out


def test_a_steer_that_was_applied_to_a_cut_turn_is_read_again() -> None:
    steer: list[Event] = [
        SteerReceived(steer_id="s1", text="In French."),
        SteerApplied(steer_id="s1", seq=2),
        TurnStarted(turn=1, model="m", engine="e"),
        TextDelta(text="Hel"),
    ]
    for upto in (2, 3, 4):
        _, _, engine = play(steer[:upto])
        assert engine.requests[0].messages[1:] == (
            Message(role="user", content="Hi"),
            Message(role="user", content="In French."),
        )


def test_a_turn_that_failed_and_was_never_reported_is_followed_by_another() -> None:
    earlier: list[Event] = [
        TurnStarted(turn=1, model="m", engine="e"),
        TurnFinished(turn=1, finish_reason="error"),
    ]
    out, finished, _ = play(earlier)
    assert finished.status == "completed"
    assert [turn.turn for turn in out.of(TurnStarted)][:2] == [1, 2]


def test_where_a_new_run_stands() -> None:
    _, context = begin(None)
    assert standing(context.state).before == (Message(role="user", content="Hi"),)
    assert standing(context.state).last is None


def test_what_follows_a_turn() -> None:
    def after(reason: str, steered: bool = False) -> str:
        turn = Turn(turn=1, model="m", engine="e", started_seq=1, finish_reason=reason)
        return next_step(turn, [], client_tools=(), steered=steered)

    assert after("stop") == after("length") == after("content_filter") == "finish"
    assert after("stop", steered=True) == "ask"
    assert after("interrupted") == after("error") == "ask"
