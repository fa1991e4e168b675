import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from harness import run_async, until
from headrace.messages import ToolSpec
from headrace.tools.execution import Outcome, execute, seconds_for
from headrace.tools.function import FunctionTool, tool
from headrace.tools.port import ToolContext


def run(of: FunctionTool, **more: Any) -> Outcome:
    return run_async(attempt(of, **more))


async def attempt(of: FunctionTool, arguments: dict[str, Any] | None = None, **more: Any) -> Outcome:
    outcomes: list[Outcome] = []
    more.setdefault("show", lambda data: None)
    await execute(of, arguments or {}, run_id="r1", call_id="c1", settle=outcomes.append, **more)
    (outcome,) = outcomes
    return outcome


def fault_of(outcome: Outcome) -> tuple[str, str]:
    assert outcome.error is not None
    return outcome.error.code, outcome.error.message


def test_an_exception_is_a_fault_and_its_traceback_stays_in_the_server(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    async def breaks() -> None:
        raise KeyError("secret detail")

    with caplog.at_level(logging.WARNING):
        outcome = run(breaks)
    assert fault_of(outcome) == ("tool_failed", "breaks failed: KeyError: 'secret detail'")
    assert outcome.error
    assert "may have taken effect" in (outcome.error.hint or "")
    assert "Traceback" in caplog.text


def test_an_exception_that_cannot_be_written_down_is_still_a_fault() -> None:
    @tool
    async def breaks() -> None:
        raise ValueError("\ud800" + "x" * 10_000)

    _, message = fault_of(run(breaks))
    assert message.encode()
    assert len(message) < 3000


def test_sys_exit_in_a_tool_does_not_end_the_server() -> None:
    @tool
    def leaves() -> None:
        raise SystemExit(3)

    assert fault_of(run(leaves))[0] == "tool_failed"


def test_a_tool_that_cancels_itself_is_a_fault_of_its_own() -> None:
    @tool
    async def gives_up() -> None:
        raise asyncio.CancelledError

    assert fault_of(run(gives_up)) == ("tool_cancelled", "gives_up cancelled itself.")


def test_an_async_tool_over_its_deadline_is_stopped() -> None:
    stopped: list[bool] = []

    @tool(timeout=0.01)
    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(True)

    assert fault_of(run(waits)) == ("tool_timeout", "waits did not finish within 0.01 s.")
    assert stopped == [True]


def test_a_timeout_of_the_tools_own_is_not_taken_for_the_deadline() -> None:
    @tool(timeout=60)
    async def asks() -> None:
        raise TimeoutError("the database did not answer")

    assert fault_of(run(asks))[0] == "tool_failed"


def test_a_sync_tool_that_ignores_its_deadline_is_abandoned_and_the_result_says_so() -> None:
    go_on = threading.Event()
    shown: list[Any] = []

    @tool(timeout=0.01)
    def stubborn(context: ToolContext) -> None:
        go_on.wait(20)
        context.progress("too late")

    async def abandoned() -> Outcome:
        outcome = await attempt(stubborn, show=shown.append)
        go_on.set()
        await until(lambda: not any(t.name == "headrace-tool" for t in threading.enumerate()))
        return outcome

    code, message = fault_of(run_async(abandoned()))
    assert code == "tool_timeout"
    assert "abandoned: it may still be running" in message
    assert shown == []


def test_a_sync_tool_that_looks_at_cancelled_ends_and_is_not_called_abandoned() -> None:
    @tool(timeout=0.05)
    def polite(context: ToolContext) -> None:
        while not context.cancelled:
            assert context.deadline_left >= 0

    code, message = fault_of(run(polite))
    assert code == "tool_timeout"
    assert "abandoned" not in message


def test_cancelling_settles_the_call_once_and_goes_through() -> None:
    outcomes: list[Outcome] = []

    async def cancelled() -> None:
        begun = asyncio.Event()

        @tool
        async def waits() -> None:
            begun.set()
            await asyncio.Event().wait()

        work = execute(waits, {}, run_id="r1", call_id="c1", show=lambda data: None, settle=outcomes.append)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(work)
            await begun.wait()
            task.cancel()
        assert task.cancelled()

    run_async(cancelled())
    assert [fault_of(outcome) for outcome in outcomes] == [("tool_cancelled", "The run was cancelled.")]


def test_progress_from_a_thread_comes_in_order_and_before_the_result() -> None:
    happened: list[Any] = []

    @tool
    def counts(context: ToolContext) -> str:
        for n in range(200):
            context.progress({"n": n})
        return "done"

    async def run_it() -> None:
        await execute(counts, {}, run_id="r1", call_id="c1", show=happened.append, settle=happened.append)

    run_async(run_it())
    assert happened[:-1] == [{"n": n} for n in range(200)]
    assert happened[-1].result == "done"


def test_progress_is_a_copy_and_must_be_json() -> None:
    shown: list[Any] = []

    @tool
    async def mutates(context: ToolContext) -> None:
        state = {"n": 1}
        context.progress(state)
        state["n"] = 2
        context.progress(object())

    assert fault_of(run(mutates, show=shown.append))[0] == "tool_failed"
    assert shown == [{"n": 1}]


@pytest.mark.parametrize("make", [object, lambda: "\ud800", lambda: {1, object()}])
def test_a_result_that_is_not_json_is_a_fault_that_names_the_type(make: Callable[[], Any]) -> None:
    @tool
    async def odd() -> Any:
        return make()

    code, message = fault_of(run(odd))
    assert code == "tool_failed"
    assert type(make()).__name__ in message


def test_a_long_text_is_cut_between_characters_and_says_so() -> None:
    @tool
    async def long() -> str:
        return "é" * 1000

    result = run(long, max_result_bytes=101).result
    assert result == "é" * 50 + "\n[Cut: the first 50 of 1000 characters.]"


def test_a_long_structure_is_refused_because_half_of_it_would_be_wrong() -> None:
    @tool(effect="none")
    async def long() -> list[int]:
        return list(range(1000))

    assert "over the limit of 100" in fault_of(run(long, max_result_bytes=100))[1]


def test_a_tool_that_has_no_time_left_is_not_started() -> None:
    ran: list[bool] = []

    @tool
    async def marks() -> None:
        ran.append(True)

    assert fault_of(run(marks, left=0.0))[0] == "tool_timeout"
    assert ran == []


def test_a_tenth_of_what_is_left_is_kept_for_the_last_answer() -> None:
    spec = ToolSpec(name="t", timeout=30)
    assert seconds_for(spec, None) == 30
    assert seconds_for(spec, 10) == 9
    assert seconds_for(spec, 34) == pytest.approx(30)
    assert seconds_for(spec, 1000) == 30
