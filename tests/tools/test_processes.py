import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cpu_tools
from harness import run_async, until
from headrace.errors import ToolFailed
from headrace.tools.context import CallContext
from headrace.tools.function import FunctionTool
from headrace.tools.processes import close_workers

pytestmark = pytest.mark.usefixtures("_workers_end")


@pytest.fixture
def _workers_end() -> Iterator[None]:
    yield
    close_workers()


async def call(tool: FunctionTool, **arguments: Any) -> Any:
    context = CallContext(run_id="r1", call_id="c1", seconds=60, show=lambda data: None)
    return await tool.call(arguments, context)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_cpu_tool_runs_in_another_process_which_is_used_again() -> None:
    async def twice() -> tuple[int, int]:
        return await call(cpu_tools.process_id), await call(cpu_tools.process_id)

    first, second = run_async(twice())
    assert first == second != os.getpid()


def test_what_it_raises_and_what_cannot_be_sent_back_are_tool_failures(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ToolFailed, match="ValueError: no"):
        run_async(call(cpu_tools.fails, why="no"))
    with pytest.raises(ToolFailed, match="cannot leave"):
        run_async(call(cpu_tools.unpicklable))
    assert "ValueError: no" in capfd.readouterr().err


def test_a_worker_that_dies_is_a_failure_and_the_next_call_gets_a_new_one() -> None:
    async def after_a_death() -> int:
        with pytest.raises(ToolFailed, match="exit code 7"):
            await call(cpu_tools.dies)
        pid = await call(cpu_tools.process_id)
        assert isinstance(pid, int)
        return pid

    assert run_async(after_a_death()) != os.getpid()


def test_cancelling_a_call_kills_its_process(tmp_path: Path) -> None:
    started = tmp_path / "started"

    async def cancelled() -> int:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(call(cpu_tools.spins, started=str(started)))
            await until(lambda: started.exists() and started.read_text())
            task.cancel()
        pid = int(started.read_text())
        await until(lambda: not alive(pid))
        return pid

    assert not alive(run_async(cancelled()))


STARTS_A_WORKER = """
import asyncio, os, signal
import cpu_tools
from headrace.tools.context import CallContext

async def main():
    context = CallContext(run_id="r", call_id="c", seconds=60, show=lambda data: None)
    print(await cpu_tools.process_id.call({}, context), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_a_worker_does_not_outlive_a_killed_server(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(STARTS_A_WORKER)
    ran = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    pid = int(ran.stdout)

    async def gone() -> None:
        await until(lambda: not alive(pid))

    run_async(gone())
