"""What a server does when it is told to go, comes back, runs out of disk, or finds its port taken."""

import asyncio
import errno
import gc
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from harness import run_async, until
from headrace import Agent, ToolContext, tool
from headrace.agent.app import App
from headrace.agent.port import RunContext
from headrace.engine.port import Text, ToolCallPart
from headrace.engine.scripted import ScriptedEngine
from headrace.errors import ConfigError, LogLocked
from headrace.events import InputRequested, RunFinished, TextDelta
from headrace.log.disk import Disk
from headrace.log.journal import JournalLog
from headrace.server import Server, serve
from serving import Caller, FunctionAgent, Gate, config, count, parse, read_until, running

COUNT = FunctionAgent(count)


def test_a_client_that_comes_back_during_a_long_tool_sees_its_state_its_progress_by_seq_and_one_result() -> None:
    async def scenario() -> None:
        steps = asyncio.Queue[int]()

        @tool(effect="once")
        async def dig(context: ToolContext) -> str:
            """Dig."""
            while (metre := await steps.get()) >= 0:
                context.progress({"metre": metre})
            return "water"

        engine = ScriptedEngine(scripts=[[ToolCallPart(index=0, name="dig", arguments="{}")], [Text("Found water.")]])
        async with running(Agent(name="digger", instructions="", engine=engine, tools=[dig])) as caller:
            run_id = await caller.start("dig")
            path = f"/v1/runs/{run_id}/events?chunk=token"
            steps.put_nowait(1)
            async with caller.stream(path) as answer:
                first = parse(await read_until(answer, b'"metre":1}'))
            steps.put_nowait(2)
            steps.put_nowait(3)
            await until(lambda: steps.empty())
            async with caller.stream(path, last_event_id=str(first[-1]["id"] if first else 0)) as answer:
                await read_until(answer, b'"metre":3}')
                _, shown = await caller.get(f"/v1/runs/{run_id}")
                (call,) = shown["state"]["tool_calls"]
                assert call["progress"] == {"metre": 3}
                assert "done" not in call
                steps.put_nowait(-1)
            events = await caller.events(path)
            assert [e["id"] for e in events] == list(range(1, len(events) + 1))
            assert [e["data"]["metre"] for e in events if e["event"] == "tool.progress"] == [1, 2, 3]
            assert [e["result"] for e in events if e["event"] == "tool.result"] == ["water"]
            assert events[-1]["output"] == "Found water."

    run_async(scenario())


def test_a_run_that_waits_for_a_person_goes_on_after_a_restart_with_an_answer_given_before_or_after(
    tmp_path: Path,
) -> None:
    async def asking(context: RunContext) -> RunFinished:
        value = await context.ask(InputRequested(input_id="colour", kind="question"))
        context.emit(TextDelta(text=value))
        return RunFinished(status="completed", output=value)

    async def scenario() -> None:
        agent = FunctionAgent(asking, resumable=True)
        async with running(agent, settings=config(tmp_path)) as caller:
            run_id = await caller.start("x")
            async with caller.stream(f"/v1/runs/{run_id}/events") as answer:
                await read_until(answer, b"input.requested")
        async with running(agent, settings=config(tmp_path)) as caller:
            status, _ = await caller.post(f"/v1/runs/{run_id}/inputs/colour", {"value": "red"})
            assert status == 202
            events = await caller.events(f"/v1/runs/{run_id}/events")
            assert [e["event"] for e in events] == [
                "run.started",
                "input.requested",
                "run.released",
                "run.recovered",
                "input.received",
                "text.delta",
                "run.finished",
            ]
            assert events[-1]["output"] == "red"

    run_async(scenario())


def test_a_run_whose_agent_cannot_resume_ends_honestly_after_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        gate = Gate()
        async with running(FunctionAgent(gate), settings=config(tmp_path, server={"drain_grace": 0.0})) as caller:
            run_id = await caller.start("x")
            await gate.entered.wait()
        async with running(FunctionAgent(gate), settings=config(tmp_path)) as caller:
            events = await caller.events(f"/v1/runs/{run_id}/events")
            assert [e["event"] for e in events][-2:] == ["run.recovered", "run.error"]
            assert (events[-1]["code"], events[-1]["retryable"]) == ("run_interrupted", True)
            assert [e["id"] for e in events] == list(range(1, len(events) + 1))

    run_async(scenario())


def test_a_cancel_that_was_accepted_before_a_crash_is_kept_after_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async def deaf(context: RunContext) -> RunFinished:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await asyncio.Event().wait()  # takes its time to stop: the server is gone first
            return RunFinished(status="completed")

        agent = FunctionAgent(deaf, resumable=True)
        async with running(agent, settings=config(tmp_path, server={"drain_grace": 0.0})) as caller:
            run_id = await caller.start("x")
            await caller.post(f"/v1/runs/{run_id}/cancel")
        async with running(agent, settings=config(tmp_path)) as caller:
            events = await caller.events(f"/v1/runs/{run_id}/events")
            assert (events[-1]["event"], events[-1]["status"]) == ("run.finished", "cancelled")

    run_async(scenario())


class FullDisk(Disk):
    """Has no room for journal writes while `full`."""

    full = False

    def write(self, fd: int, data: bytes | memoryview) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(fd, data)


def test_a_full_disk_ends_runs_with_an_error_and_the_server_lives_and_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        disk = FullDisk()
        monkeypatch.setattr("headrace.server.open_log", lambda _: JournalLog(tmp_path, disk=disk, probe_every_s=0.05))
        gate = Gate()
        async with running(FunctionAgent(gate), COUNT_TOO) as caller:
            run_id = await caller.start("x")
            await gate.entered.wait()
            async with caller.stream(f"/v1/runs/{run_id}/events") as answer:
                await read_until(answer, b"before")
                disk.full = True
                gate.open.set()
                status, problem = await caller.post("/v1/runs", {"input": "1", "agent": "count"})
                assert (status, problem["code"], problem["retryable"]) == (503, "log_unavailable", True)
                assert (await caller.get("/readyz"))[1] == {"status": "unready", "failing": ["log"]}
                assert (await caller.get("/healthz"))[0] == 200
                disk.full = False
                last = parse(await answer.read())[-1]
            assert (last["event"], last["code"]) == ("run.error", "log_unavailable")
            while (await caller.get("/readyz"))[0] != 200:  # noqa: ASYNC110  (nobody can tell us: it tries again by itself)
                await asyncio.sleep(0.01)
            assert (await caller.finished("3", agent="count"))["status"] == "completed"

    run_async(scenario())


@pytest.mark.parametrize("commits_first", [True, False])
def test_only_an_agent_that_commits_first_begins_before_its_run_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits_first: bool
) -> None:
    """On a full disk the run is refused; one agent has begun by then and is stopped, the other was never asked."""

    async def scenario() -> None:
        disk, gate = FullDisk(), Gate()
        agent = FunctionAgent(gate)
        agent.commits_first = commits_first
        monkeypatch.setattr("headrace.server.open_log", lambda _: JournalLog(tmp_path, disk=disk, probe_every_s=3600))
        async with running(agent) as caller:
            disk.full = True
            status, problem = await caller.post("/v1/runs", {"input": "x"})
            assert (status, problem["code"]) == (503, "log_unavailable")
            while caller.server.supervisor.active:  # noqa: ASYNC110  (it is stopped in the next ticks)
                await asyncio.sleep(0.01)
            assert (gate.entered.is_set(), gate.cancelled) == (commits_first, commits_first)
            assert (await caller.get("/v1/runs"))[1] == {"runs": []}

    run_async(scenario())


COUNT_TOO = FunctionAgent(count, "count")


def test_a_taken_port_and_a_taken_store_are_refused_by_name(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(COUNT, settings=config(tmp_path)) as caller:
            with pytest.raises(ConfigError, match=str(caller.server.port)):
                async with running(COUNT, settings=config(server={"port": caller.server.port})):
                    raise AssertionError("two servers on one port")
            with pytest.raises(LogLocked, match=str(os.getpid())):
                async with running(COUNT, settings=config(tmp_path)):
                    raise AssertionError("two servers on one store")

    run_async(scenario())


@asynccontextmanager
async def served(tmp_path: Path, app: str, **settings: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """`headrace serve` as a process of its own, and its address."""
    environment = {
        **os.environ,
        "HEADRACE_LOG__PATH": str(tmp_path / "store"),
        "HEADRACE_SERVER__PORT": "0",
        "LEDGER": str(tmp_path / "ledger"),
        **settings,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "headrace.cli", "serve", app),
        cwd=Path(__file__).parent,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        line = await process.stdout.readline()
        yield process, line.decode().split()[-1]
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def test_sigterm_lets_a_run_finish_and_then_the_server_goes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path, "killed_app:app") as (process, url), aiohttp.ClientSession() as http:
            caller = Caller(_At(url), http)  # type: ignore[arg-type]
            run_id = await caller.start("x")
            async with caller.stream(f"/v1/runs/{run_id}/events") as answer:
                await read_until(answer, b"text.delta")
                process.send_signal(signal.SIGTERM)
                events = parse(await answer.read())
            assert events[-1]["event"] == "run.finished"
            assert await process.wait() == 0

    run_async(scenario(), deadline=60)


def test_sigterm_with_idle_streams_ends_soon_and_a_client_continues_where_it_was(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = {"HEADRACE_SERVER__DRAIN_GRACE": "0.1"}
        async with aiohttp.ClientSession() as http:
            async with served(tmp_path, "killed_app:waiting", **settings) as (process, url):
                caller = Caller(_At(url), http)  # type: ignore[arg-type]
                run_id = await caller.start("x")
                streams = [await http.get(f"{url}/v1/runs/{run_id}/events") for _ in range(100)]
                raw = await read_until(streams[0], b"text.delta")
                process.send_signal(signal.SIGTERM)
                assert await process.wait() == 0
                rests = [await stream.read() for stream in streams]
                assert not any(b"run.finished" in rest or b"run.error" in rest for rest in rests)
            last = parse(raw + b"\n\n")[-1]["id"]
            async with served(tmp_path, "killed_app:app", **settings) as (_, url):
                caller = Caller(_At(url), http)  # type: ignore[arg-type]
                events = await caller.events(f"/v1/runs/{run_id}/events", last_event_id=str(last))
                assert events[0]["id"] > last
                assert events[-1]["event"] == "run.finished"

    run_async(scenario(), deadline=60)


class _At:
    """What `Caller` needs of a server that is another process."""

    def __init__(self, url: str) -> None:
        self.url = url


def test_the_garbage_collector_does_not_look_at_what_lives_as_long_as_the_process(tmp_path: Path) -> None:
    """It would stop the loop for as long as that takes, some 20 ms, whenever many objects have been made."""

    async def scenario() -> None:
        ready = asyncio.Event()
        server = Server(App(COUNT), config(tmp_path))
        serving = asyncio.create_task(serve(server, ready=ready))
        await ready.wait()
        frozen = gc.get_freeze_count()
        os.kill(os.getpid(), signal.SIGTERM)
        await serving
        assert frozen > 10_000

    try:
        run_async(scenario())
    finally:
        gc.unfreeze()
