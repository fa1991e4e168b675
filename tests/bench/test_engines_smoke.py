"""The benchmark of the embedded engine works: one short measure through the port, and the table."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.model
def test_a_short_round_of_bench_engines_finds_the_prefix_again() -> None:
    command = [sys.executable, "-m", "bench", "engines", "--quick", "--only", "prefix", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=True)
    numbers = json.loads(done.stdout)["prefix"]
    assert numbers["second_cached"] >= numbers["prompt_tokens"]
    assert numbers["second_over_cold"] > 0


def test_a_goal_that_was_missed_says_so_and_one_that_was_not_measured_is_left_out() -> None:
    results = {"prefix": {"second_over_cold": 0.3}, "restore": {"recomputed_over_restored": 15.0}}
    code = f"from bench.engines import tables; print(tables({results!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    goals = [line for line in done.stdout.splitlines() if "≤" in line or "≥" in line]
    assert ["missed" in goal for goal in goals] == [True, False]


def test_a_measure_is_written_with_its_own_goals_and_how_it_was_taken() -> None:
    code = "from bench.engines import section; print(section('prefix', {'second_over_cold': 0.3}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("## prefix: second turn")
    assert "scripts/bench engines --only prefix" in done.stdout
    assert [line for line in done.stdout.splitlines() if "≤" in line] == [
        "| second turn over the cold one | ≤ 0.2 | 0.3 | **missed** |"
    ]


def test_what_a_quick_look_measures_is_never_written() -> None:
    command = [sys.executable, "-m", "bench", "engines", "--quick", "--write", "--only", "prefix"]
    before = (ROOT / "bench" / "RESULTS.md").read_bytes()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--quick" in done.stderr
    assert (ROOT / "bench" / "RESULTS.md").read_bytes() == before
