"""An agent begins before its run is stored. Killed at any system call, nothing of that is ever seen twice or half."""

import subprocess
import sys
from pathlib import Path

import pytest

from early_child import WISH, Durability, serving
from harness import run_async
from headrace.events import RunFinished
from headrace.log.follow import follow
from headrace.state import RunState

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
