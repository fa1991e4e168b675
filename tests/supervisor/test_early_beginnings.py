"""An agent begins before its run is stored. Whatever the disk does, nothing of that is ever seen twice or half."""

import asyncio
import random
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from early_child import WISH, Durability, serving
from harness import run_async, until
from headrace.agent.port import RunContext
from headrace.errors import InvalidRequest, LogUnavailable
from headrace.events import RunFinished, TextDelta
from headrace.log.follow import follow
from headrace.log.journal import JournalLog
from headrace.log.ports import Log, RunInfo
from headrace.messages import Message
from headrace.runs import Runs, StartRun
from headrace.state import RunState
from headrace.supervisor import Supervisor
from headrace.testing.disk import FailingDisk
from serving import Body, FunctionAgent

CHILD = Path(__file__).parent.parent / "early_child.py"
STEPS = 20


@pytest.mark.parametrize("durability", ["journal", "fsync"])
def test_killed_at_every_call_while_a_run_begins_its_key_stands_for_one_run_and_its_tool_runs_once(
    tmp_path: Path, durability: Durability
) -> None:
    first, charged_before = 0, set[int]()
    while not (first and closed(tmp_path / str(first - 1))):
        command = [sys.executable, str(CHILD), str(tmp_path), durability, str(first), str(first + STEPS)]
        subprocess.run(command, check=True, timeout=60)
        for steps in range(first, first + STEPS):
            charged_before.add(len(lines(tmp_path / str(steps) / "ledger")))
            run_async(check(tmp_path / str(steps), durability))
        first += STEPS
    assert charged_before == {0, 1}, "no kill came before the tool, or none after it"


async def check(folder: Path, durability: Durability) -> None:
    """Whoever comes back finds the run that it was told of, or begins it; and then there is one, whole."""
    async with serving(folder, durability) as runs:
        run_id = await runs.start(WISH, tenant="t", key="k", fingerprint="f")
        assert lines(folder / "told")[:1] in ([], [run_id])
        async for _ in follow(runs.log, run_id):
            pass
        records = await runs.log.read(run_id)
        assert [record.seq for record in records] == list(range(1, len(records) + 1))
        assert isinstance(records[-1].event, RunFinished)
        assert [row.run_id for row in await runs.log.runs("t")] == [run_id]
        check_charged(folder, await runs.log.state(run_id))


def check_charged(folder: Path, state: RunState) -> None:
    charged = lines(folder / "ledger")
    ran = [call.call_id for call in state.tool_calls if call.source == "ran" and call.error is None]
    unknown = [call.call_id for call in state.tool_calls if call.source == "unknown_outcome"]
    assert len(charged) <= 1
    assert set(ran) <= set(charged) <= {*ran, *unknown}
    assert ran or unknown


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def closed(folder: Path) -> bool:
    return "closed" in lines(folder / "told")


class FickleDisk(FailingDisk):
    """Fails that many of its calls."""

    odds = 0.0

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance

    def _check(self, call: str) -> None:
        self.failing = {call} if self._chance.random() < self.odds else set()
        super()._check(call)


async def hurry(context: RunContext) -> RunFinished:
    """Does as it is told, and most of it before its run is stored."""
    if context.question == "fail":
        raise InvalidRequest("No.")
    context.emit(TextDelta(text="a"))
    if context.question == "commit":
        await context.commit()
    elif context.question == "talk":
        await asyncio.sleep(0)
        context.emit(TextDelta(text="b"))
    return RunFinished(status="completed")


async def insist(runs: Runs, key: str, question: str) -> str:
    """A client that asks until it is answered."""
    wish = StartRun(input=(Message(role="user", content=question),))
    while True:
        try:
            return await runs.start(wish, tenant="t", key=key, fingerprint="f")
        except LogUnavailable:
            await asyncio.sleep(0)  # the others ask, too


async def whole(log: Log) -> Sequence[RunInfo]:
    """All runs there are. Each has every record, to its end."""
    rows = await log.runs("t", limit=1000)
    for row in rows:
        assert [record.seq for record in await log.read(row.run_id)] == list(range(1, row.seq + 1))
        assert row.ended_ts
    return rows


@pytest.mark.parametrize("durability", ["journal", "fsync"])
@pytest.mark.parametrize("seed", range(4))
def test_whatever_fails_while_runs_begin_the_runs_that_clients_were_told_of_are_all_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: Durability, seed: int
) -> None:
    monkeypatch.setattr("headrace.supervisor.ending.END_RETRY_S", (0.001,))
    agent = FunctionAgent(hurry)

    async def main() -> None:
        disk = FickleDisk(random.Random(seed))
        log = JournalLog(tmp_path, durability=durability, disk=disk, probe_every_s=0.001, tidy_every_s=3600)
        async with log, Supervisor(log=log, agents={"agent": agent}, engine=None, max_active=3) as supervisor:
            runs = Runs(log=log, agents={"agent": ""}, launch=supervisor.launch, early={"agent"})
            asked = [(f"key-{number % 20}", ("end", "fail", "commit", "talk")[number % 4]) for number in range(60)]
            disk.odds = 0.4
            told = await asyncio.gather(*(insist(runs, key, question) for key, question in asked))
            disk.odds = 0.0
            await until(lambda: not supervisor.active and not supervisor.queued)
            assert told == told[:20] * 3
            assert {row.run_id for row in await whole(log)} == set(told)
        async with JournalLog(tmp_path, tidy_every_s=3600) as again:
            assert {row.run_id for row in await whole(again)} == set(told)

    run_async(main())


async def deaf(context: RunContext) -> RunFinished:
    """Ends as if it had not been told to stop."""
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    return RunFinished(status="completed")


@pytest.mark.parametrize("body", [hurry, deaf])
def test_a_run_that_could_not_be_stored_and_ends_all_the_same_keeps_no_place_and_nobody_tries_to_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, body: Body
) -> None:
    monkeypatch.setattr("headrace.supervisor.ending.END_RETRY_S", (3600.0,))

    async def main() -> None:
        disk = FickleDisk(random.Random(0))
        log = JournalLog(tmp_path, disk=disk, tidy_every_s=3600)
        async with log, Supervisor(log=log, agents={"agent": FunctionAgent(body)}, engine=None) as supervisor:
            runs = Runs(log=log, agents={"agent": ""}, launch=supervisor.launch, early={"agent"})
            disk.odds = 1.0
            with pytest.raises(LogUnavailable):
                await runs.start(WISH, tenant="t")
            await until(lambda: not supervisor.active)

    run_async(main())
    assert "ended" not in caplog.text
