"""SIGKILL at random moments of whole runs: nothing lost, nothing doubled, no zombie, no tool run twice unasked."""

import asyncio
import contextlib
import itertools
import os
import random
import signal
import socket
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from harness import is_alive, run_async, until
from headrace.events import (
    TERMINALS,
    Record,
    RunFinished,
    RunRecovered,
    TextDelta,
    TextRetracted,
    ToolCallEnded,
    ToolResult,
    TurnContinued,
    TurnStarted,
)
from headrace.state import RunState, fold, initial
from headrace.wire.codec import decode_record

KILLS = 50
CONCURRENT_RUNS = 4
SEED = 20261129
HERE = Path(__file__).parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Victim:
    """A server on one port and one store, started and killed again and again."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.ledger = folder / "ledger"
        self._output = folder / "server.log"
        self._environment = {
            **os.environ,
            "LEDGER": str(self.ledger),
            "HEADRACE_LOG__PATH": str(folder / "store"),
            "HEADRACE_SERVER__PORT": str(self.port),
            "HEADRACE_RUN__MAX_CRASHES": "1000",  # it is not the runs that end these servers
        }
        self._pid = 0

    async def __aenter__(self) -> "Victim":
        with self._output.open("wb") as output:
            self._forks = await asyncio.create_subprocess_exec(
                sys.executable,
                "fork_server.py",
                "killed_app:app",
                cwd=HERE,
                env=self._environment,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=output,
            )
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.kill()
        assert self._forks.stdin is not None
        self._forks.stdin.close()
        await self._forks.wait()

    async def start(self) -> None:
        assert self._forks.stdin is not None
        assert self._forks.stdout is not None
        self._forks.stdin.write(b"\n")
        line = b""
        while not line.strip().isdigit():  # the servers announce themselves on the same pipe
            line = await self._forks.stdout.readline()
            assert line, self._output.read_text()
        self._pid = int(line)

    def kill(self) -> None:
        """And wait until it is gone: until then its port is taken."""
        os.kill(self._pid, signal.SIGKILL)
        while is_alive(self._pid):
            time.sleep(0.001)


class User:
    """A client written for this test: it comes back at once, and keeps every record it was ever sent."""

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self._url = url
        self._http = http
        self.seen = 0

    async def run(self, question: str, agent: str = "mailer") -> list[Record]:
        """Start a run, whatever it takes, and follow it to its end."""
        body = msgspec.json.encode({"input": question, "agent": agent})
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                headers = {"idempotency-key": question}
                async with self._http.post(f"{self._url}/v1/runs", data=body, headers=headers) as answer:
                    assert answer.status == 202, await answer.text()
                    run_id = msgspec.json.decode(await answer.read())["run_id"]
                    break
            await asyncio.sleep(0.02)
        return await self._follow(run_id)

    async def listed(self) -> list[dict[str, Any]]:
        """The list of runs, from a server that may not listen again yet."""
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with self._http.get(f"{self._url}/v1/runs?limit=1000") as answer:
                    rows: list[dict[str, Any]] = msgspec.json.decode(await answer.read())["runs"]
                    return rows
            await asyncio.sleep(0.02)

    async def _follow(self, run_id: str) -> list[Record]:
        records: list[Record] = []
        while not (records and isinstance(records[-1].event, TERMINALS)):
            with contextlib.suppress(aiohttp.ClientError):
                url = f"{self._url}/v1/runs/{run_id}/events?chunk=token"
                headers = {"last-event-id": str(len(records))}
                async with self._http.get(url, headers=headers) as answer:
                    assert answer.status == 200, await answer.text()
                    await self._read(answer, run_id, records)
            await asyncio.sleep(0.02)
        return records

    async def _read(self, answer: aiohttp.ClientResponse, run_id: str, records: list[Record]) -> None:
        rest = b""
        async for piece in answer.content.iter_any():
            *frames, rest = (rest + piece).split(b"\n\n")
            for frame in frames:
                lines = [line for line in frame.split(b"\n") if not line.startswith((b":", b"retry:"))]
                records.append(decode_record(run_id, b"\n".join(lines) + b"\n\n"))
                self.seen += 1


@pytest.mark.slow
def test_fifty_kills_lose_nothing_double_nothing_and_run_no_tool_twice(tmp_path: Path) -> None:
    async def scenario() -> list[list[Record]]:
        chance = random.Random(SEED)
        runs: list[list[Record]] = []
        over = asyncio.Event()

        async def keep_asking(user: User, name: int) -> None:
            for number in itertools.count():
                if over.is_set():
                    return
                runs.append(await user.run(f"user-{name}-{number}"))

        async with Victim(tmp_path) as victim, aiohttp.ClientSession() as http:
            user = User(victim.url, http)
            async with asyncio.TaskGroup() as users:
                for name in range(CONCURRENT_RUNS):
                    users.create_task(keep_asking(user, name))
                for _ in range(KILLS):
                    target = user.seen + chance.randrange(1, 200)
                    await until(lambda target=target: user.seen > target, deadline=60)  # type: ignore[misc]
                    victim.kill()
                    await victim.start()
                over.set()
            listed = await user.listed()
        assert len(listed) == len(runs)
        assert all(row["ended_ts"] for row in listed), "a zombie"
        return runs

    runs = run_async(scenario(), deadline=400)
    executed = Counter((tmp_path / "ledger").read_text().split("\n")[:-1])
    recoveries = sum(check_run(records, executed) for records in runs)
    assert recoveries >= KILLS / 2, "the kills hit nothing"


def test_killed_in_mid_sentence_a_run_finishes_the_sentence_and_takes_nothing_back(tmp_path: Path) -> None:
    async def scenario() -> list[Record]:
        async with Victim(tmp_path) as victim, aiohttp.ClientSession() as http:
            user = User(victim.url, http)
            async with asyncio.TaskGroup() as users:
                talking = users.create_task(user.run("talk", agent="talker"))
                for seen in (30, 90, 200):
                    await until(lambda seen=seen: user.seen > seen)  # type: ignore[misc]
                    victim.kill()
                    await victim.start()
            return talking.result()

    records = run_async(scenario(), deadline=60)
    events = [record.event for record in records]
    story = " ".join(f"word-{number}" for number in range(400))
    shown = "".join(event.text for event in events if isinstance(event, TextDelta))
    last = events[-1]
    assert isinstance(last, RunFinished)
    assert shown == last.output == story
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    kinds = Counter(type(event) for event in events)
    assert (kinds[TextRetracted], kinds[TurnStarted], kinds[TurnContinued], kinds[RunRecovered]) == (0, 1, 3, 3)


def check_run(records: list[Record], executed: Counter[str]) -> int:
    """Every promise about one run; how often it was recovered."""
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    assert [isinstance(record.event, TERMINALS) for record in records] == [False] * (len(records) - 1) + [True]
    state = fold(records, initial(records[0].run_id))
    assert state.status == "completed", state.error
    last = records[-1].event
    assert isinstance(last, RunFinished)
    assert last.output == state.turns[-1].text
    assert state.turns[-1].text == "".join(f"3.{number} " for number in range(12)), state.turns[-1].text
    results = Counter(record.event.call_id for record in records if isinstance(record.event, ToolResult))
    assert set(results.values()) <= {1}
    assert all(call.done for call in state.tool_calls)
    whole = [call for call in state.tool_calls if call.arguments is not None]
    assert [call.name for call in whole] == ["send_mail", "put", "send_mail"]
    for call in whole:
        check_executions(records, state, call.call_id, executed)
    for call in state.tool_calls:
        if call not in whole:  # a crash cut its turn before the arguments were whole: closed, and never run
            assert call.error is not None
            assert executed[f"once {call.call_id}"] == executed[f"idempotent {call.call_id}"] == 0
    return state.recoveries


def check_executions(records: list[Record], state: RunState, call_id: str, executed: Counter[str]) -> None:
    """`once` runs at most once, and exactly once if it has a result; `idempotent` again only if a crash took its
    result."""
    call = next(call for call in state.tool_calls if call.call_id == call_id)
    once, repeatable = executed[f"once {call_id}"], executed[f"idempotent {call_id}"]
    if call.name == "send_mail":
        assert repeatable == 0
        assert once == 1 if call.source == "ran" else once <= 1
        assert call.source in ("ran", "unknown_outcome")
    else:
        begun = next(r.seq for r in records if isinstance(r.event, ToolCallEnded) and r.event.call_id == call_id)
        ended = next(r.seq for r in records if isinstance(r.event, ToolResult) and r.event.call_id == call_id)
        crashes = sum(r.seq > begun and r.seq < ended and isinstance(r.event, RunRecovered) for r in records)
        assert call.source == "ran"
        assert 1 <= repeatable <= 1 + crashes
