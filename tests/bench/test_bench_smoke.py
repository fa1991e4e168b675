"""The benchmark itself works: its clock, its counting, and one short round of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def bench(*arguments: str, deadline: float = 100.0) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=deadline)


def evaluate(code: str) -> str:
    """Run code in the repository's root, where `bench` can be imported."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
    )
    return done.stdout.strip()


def test_a_stamp_tells_its_age_also_across_the_wrap() -> None:
    code = "from bench.model import WRAP, age_us, stamp\nfor t in (0, 1, WRAP - 5): print(age_us(stamp(t), t + 1234))"
    assert evaluate(code).split() == ["1234", "1234", "1234"]


def test_a_plan_survives_its_text() -> None:
    code = (
        "from bench.model import Plan, parse_plan\n"
        "plan = Plan(tokens=7, rate=2.5, first=0.25, stamp='due', linger=3.0, burst=2)\n"
        "print(parse_plan(str(plan)) == plan)"
    )
    assert evaluate(code) == "True"


def test_the_floor_writes_the_same_frame_as_headrace() -> None:
    code = (
        "import re\n"
        "from bench.servers.frames import encode_delta\n"
        "from headrace.events import TextDelta\n"
        "from headrace.wire.codec import encode_record\n"
        "floor = encode_delta(12, 'hello')\n"
        "ts = int(re.search(rb'\"ts\":(\\d+)', floor)[1])\n"
        "print(encode_record(12, ts, TextDelta(text='hello')) == floor)"
    )
    assert evaluate(code) == "True"


@pytest.mark.slow
def test_a_short_round_measures_the_whole_path_beside_the_floor() -> None:
    done = bench("stream", "--quick", "--json", "--only", "floor,headrace", "--measures", "cost_200x20,wire,first_0")
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    for name in ("floor", "headrace"):
        (cost,) = results["cost_200x20"][name]
        assert cost["started"] == 200
        assert cost["us_per_event"] > 0
        (wire,) = results["wire"][name]
        assert wire["frame_bytes"] < wire["wire_bytes"] <= 90
        (first,) = results["first_0"][name]
        assert 0 < first["min_ms"] <= first["p50_ms"]
