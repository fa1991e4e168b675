import asyncio
import logging
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from harness import run_async
from headrace.agent.port import RunContext
from headrace.errors import ConfigError, InvalidRequest, StaleFence
from headrace.events import Event, NodeFinished, NodeStarted, TextDelta
from headrace.state import Node as Outcome
from headrace.workflow.run import Workflow
from recording import Recording, begin

Inputs = Mapping[str, Any]


def play(flow: Workflow, earlier: list[Event] | None = None) -> tuple[Recording, dict[str, Outcome]]:
    async def run() -> tuple[Recording, dict[str, Outcome]]:
        out, context = begin(None, earlier=earlier or [])
        return out, await flow.run(context)

    return run_async(run())


def statuses(nodes: dict[str, Outcome]) -> dict[str, str]:
    return {name: node.status for name, node in nodes.items()}


def test_nodes_without_a_common_need_run_at_the_same_time_and_their_dependant_gets_both() -> None:
    flow = Workflow("w")
    meeting = asyncio.Barrier(2)

    @flow.node()
    async def left(context: RunContext, inputs: Inputs) -> int:
        await meeting.wait()
        return 1

    @flow.node()
    async def right(context: RunContext, inputs: Inputs) -> int:
        await meeting.wait()
        return 2

    @flow.node(needs=("left", "right"))
    async def total(context: RunContext, inputs: Inputs) -> int:
        return int(inputs["left"] + inputs["right"])

    out, nodes = play(flow)
    assert nodes["total"].result == 3
    assert out.of(NodeStarted)[-1] == NodeStarted(node="total", needs=("left", "right"))
    assert [node.status for node in out.of(NodeFinished)] == ["completed"] * 3


def test_a_node_starts_the_moment_its_own_needs_are_met_and_waits_for_nobody_else() -> None:
    flow = Workflow("w")
    quick_is_through = asyncio.Event()

    @flow.node()
    async def slow(context: RunContext, inputs: Inputs) -> None:
        await quick_is_through.wait()

    @flow.node()
    async def quick(context: RunContext, inputs: Inputs) -> None: ...

    @flow.node(needs=("quick",))
    async def after_quick(context: RunContext, inputs: Inputs) -> None:
        quick_is_through.set()

    assert set(statuses(play(flow)[1]).values()) == {"completed"}


def test_a_late_node_is_answered_by_its_fallback_and_the_record_says_why() -> None:
    flow = Workflow("w")

    @flow.node(deadline=0.01, fallback=["nothing found"])
    async def retrieve(context: RunContext, inputs: Inputs) -> list[str]:
        await asyncio.Event().wait()
        return []

    @flow.node(needs=("retrieve",))
    async def answer(context: RunContext, inputs: Inputs) -> str:
        context.emit(TextDelta(text="I know only this."))
        return str(inputs["retrieve"][0])

    out, nodes = play(flow)
    assert statuses(nodes) == {"retrieve": "fallback", "answer": "completed"}
    assert nodes["answer"].result == "nothing found"
    assert nodes["retrieve"].error
    assert nodes["retrieve"].error.code == "deadline_exceeded"
    assert out.of(TextDelta)


def test_a_fallback_may_be_a_function() -> None:
    flow = Workflow("w")

    async def plan_b(context: RunContext, inputs: Inputs) -> str:
        return "b"

    @flow.node(fallback=plan_b)
    async def plan_a(context: RunContext, inputs: Inputs) -> str:
        raise InvalidRequest("no", hint="do")

    nodes = play(flow)[1]
    assert (nodes["plan_a"].status, nodes["plan_a"].result) == ("fallback", "b")
    assert nodes["plan_a"].error
    assert nodes["plan_a"].error.hint == "do"


def test_a_fallback_that_fails_leaves_the_node_failed_with_both_reasons() -> None:
    flow = Workflow("w")

    def worse(context: RunContext, inputs: Inputs) -> str:
        raise ValueError("second")

    @flow.node(fallback=worse)
    async def bad(context: RunContext, inputs: Inputs) -> str:
        raise ValueError("first")

    node = play(flow)[1]["bad"]
    assert node.status == "failed"
    assert node.error
    assert "first" in node.error.message
    assert "second" in node.error.message


def test_a_failed_node_dooms_its_dependants_and_its_siblings_live(caplog: pytest.LogCaptureFixture) -> None:
    flow = Workflow("w")
    failed = asyncio.Event()

    @flow.node()
    async def breaks(context: RunContext, inputs: Inputs) -> None:
        try:
            raise RuntimeError("boom")
        finally:
            failed.set()

    @flow.node(needs=("breaks",))
    async def dependant(context: RunContext, inputs: Inputs) -> None: ...

    @flow.node(needs=("dependant",))
    async def grandchild(context: RunContext, inputs: Inputs) -> None: ...

    @flow.node()
    async def sibling(context: RunContext, inputs: Inputs) -> str:
        await failed.wait()
        return "here"

    with caplog.at_level(logging.WARNING):
        out, nodes = play(flow)
    assert statuses(nodes) == {
        "breaks": "failed",
        "sibling": "completed",
        "dependant": "skipped",
        "grandchild": "skipped",
    }
    assert nodes["dependant"].error
    assert nodes["dependant"].error.message == "breaks, which it needs, failed."
    assert nodes["grandchild"].error
    assert nodes["grandchild"].error.message == "dependant, which it needs, was skipped."
    assert [n.node for n in out.of(NodeStarted)] == ["breaks", "sibling"]
    assert "boom" in caplog.text


def test_finished_nodes_are_not_repeated_after_a_restart() -> None:
    flow = Workflow("w")
    ran: list[str] = []

    @flow.node()
    async def first(context: RunContext, inputs: Inputs) -> int:
        ran.append("first")
        return 1

    @flow.node(needs=("first",))
    async def second(context: RunContext, inputs: Inputs) -> int:
        ran.append("second")
        return int(inputs["first"]) + 1

    full, _ = play(flow)
    for upto in range(1, len(full.events) + 1):
        ran.clear()
        earlier = full.events[1:upto]
        _, nodes = play(flow, earlier)
        assert nodes["second"].result == 2
        finished = {event.node for event in earlier if isinstance(event, NodeFinished)}
        assert ran == [name for name in ("first", "second") if name not in finished]


def test_a_node_with_an_effect_that_was_cut_is_not_run_twice() -> None:
    flow = Workflow("w")
    ran: list[bool] = []

    @flow.node(effect="once")
    async def pays(context: RunContext, inputs: Inputs) -> None:
        ran.append(True)

    node = play(flow, [NodeStarted(node="pays")])[1]["pays"]
    assert node.status == "failed"
    assert node.error
    assert node.error.code == "unknown_outcome"
    assert ran == []


def test_an_effect_is_durable_before_its_dependants_start() -> None:
    flow = Workflow("w")
    durable: list[int] = []

    async def run() -> Recording:
        out, context = begin(None)

        @flow.node(effect="once")
        async def pays(context: RunContext, inputs: Inputs) -> str:
            assert out.durable == out.seq  # node.started
            return "receipt"

        @flow.node(needs=("pays",))
        async def tells(context: RunContext, inputs: Inputs) -> None:
            durable.append(out.durable)

        await flow.run(context)
        return out

    out = run_async(run())
    paid = next(at for at, e in enumerate(out.events, 1) if isinstance(e, NodeFinished))
    assert durable == [paid]


def test_a_result_that_is_not_json_is_the_nodes_failure() -> None:
    flow = Workflow("w")

    @flow.node()
    async def odd(context: RunContext, inputs: Inputs) -> object:
        return object()

    error = play(flow)[1]["odd"].error
    assert error
    assert "JSON" in error.message


def test_sync_nodes_run_in_threads() -> None:
    flow = Workflow("w")

    @flow.node()
    def computes(context: RunContext, inputs: Inputs) -> str:
        return threading.current_thread().name

    assert play(flow)[1]["computes"].result == "headrace-node"


def test_a_lost_claim_ends_the_workflow_and_is_nobodys_failure() -> None:
    flow = Workflow("w")

    @flow.node(fallback=1)
    async def writes(context: RunContext, inputs: Inputs) -> None:
        raise StaleFence("another worker")

    with pytest.raises(StaleFence):
        play(flow)


def test_cancelling_a_workflow_cancels_its_nodes() -> None:
    flow = Workflow("w")
    ended: list[str] = []

    async def run() -> set[asyncio.Task[Any]]:
        begun = asyncio.Barrier(3)

        async def body(context: RunContext, inputs: Inputs) -> None:
            await begun.wait()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("x")

        flow.node(name="a")(body)
        flow.node(name="b")(body)
        _, context = begin(None)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(flow.run(context))
            await begun.wait()
            task.cancel()
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert run_async(run()) == set()
    assert ended == ["x", "x"]


def test_a_workflow_with_a_circle_says_so_when_it_is_first_used() -> None:
    flow = Workflow("w")
    flow.node(name="a", needs=("b",))(lambda context, inputs: None)
    flow.node(name="b", needs=("a",))(lambda context, inputs: None)
    with pytest.raises(ConfigError, match="circle"):
        play(flow)
