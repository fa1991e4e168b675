import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from harness import run_async, until
from headrace.agent.calls import arguments_hash
from headrace.agent.loop import Agent
from headrace.agent.port import RunContext
from headrace.engine.scripted import ScriptedEngine
from headrace.events import InputReceived, InputRequested, ToolCallEnded, ToolResult
from headrace.tools.function import tool
from recording import Recording, assert_well_formed, begin, tool_call

ran: list[str] = []


@tool(approval=True)
async def delete(name: str) -> str:
    """Delete."""
    ran.append(name)
    return "gone"


@tool(effect="none")
async def look() -> str:
    """Look."""
    return "seen"


AGENT = Agent("a", tools=[delete, look])


def play(answer: Any) -> Recording:
    async def run() -> Recording:
        ran.clear()
        script = [tool_call(0, "delete", '{"name":"x"}'), tool_call(1, "look")]
        out, context = begin(ScriptedEngine(scripts=[script, "ok"]))
        async with asyncio.TaskGroup() as group:
            group.create_task(AGENT.run(context))
            await until(lambda: out.of(InputRequested) and out.of(ToolResult))
            assert ran == []
            assert context.waiting
            context.answer_nowait(InputReceived(input_id=out.of(InputRequested)[0].input_id, value=answer))
        assert_well_formed(out.events)
        return out

    return run_async(run())


def test_a_call_that_needs_approval_waits_for_a_person_and_its_siblings_do_not() -> None:
    out = play(True)
    assert ran == ["x"]
    assert [out.number(result.call_id) for result in out.of(ToolResult)] == [1, 0]


def test_the_request_is_bound_to_the_call_and_its_arguments() -> None:
    out = play({"approved": True})
    (request,) = out.of(InputRequested)
    ended = out.of(ToolCallEnded)[0]
    assert (request.kind, request.call_id) == ("approval", out.calls()[0])
    assert request.arguments_hash == arguments_hash(ended.arguments)
    assert '{"name":"x"}' in request.prompt
    assert ran == ["x"]


@pytest.mark.parametrize("answer", [False, None, "yes", 1, {"approved": "true"}, {}])
def test_anything_but_a_clear_yes_is_a_no_that_the_model_reads(answer: Any) -> None:
    out = play(answer)
    assert ran == []
    refused = out.of(ToolResult)[1]
    assert refused.error
    assert "refused" in refused.error.message


def test_the_hash_is_of_the_values_and_not_of_their_order() -> None:
    assert arguments_hash({"a": 1, "b": [2]}) == arguments_hash({"b": [2], "a": 1})
    assert arguments_hash({"a": 1}) != arguments_hash({"a": "1"})


class StopsInCommit(Recording):
    """The run is taken away in the very moment in which the first call has become durable."""

    def __init__(self, stop: Callable[[], None], earlier: Recording) -> None:
        super().__init__(earlier.events)
        self.stop = stop

    async def commit(self, *events: Any) -> None:
        await super().commit(*events)
        self.stop()


@pytest.mark.parametrize("released", [False, True])
def test_a_tool_does_not_start_between_a_stop_and_its_arrival(released: bool) -> None:
    began: list[bool] = []

    @tool(effect="none")
    async def marks() -> None:
        began.append(True)

    async def run() -> StopsInCommit:
        engine = ScriptedEngine([tool_call(0, "marks")])
        plain, _ = begin(engine)

        def stop() -> None:
            context.cancelling = not released
            if released:
                context.release()
            task.cancel()

        out = StopsInCommit(stop, plain)
        context = RunContext(state=out.state(), history=(), out=out, engine=engine)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(Agent("a", tools=[marks]).run(context))
        assert task.cancelled()
        return out

    out = run_async(run())
    assert began == []
    assert len(out.of(ToolResult)) == (0 if released else 1)
