"""What aiperf reports, as `python -m bench.passthrough` reads it and sets side by side."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

READ = """
import sys
from bench.passthrough import AiperfFailed, read_report
try:
    print(read_report(sys.stdin.buffer.read(), answers=8))
except AiperfFailed as failed:
    sys.exit(str(failed))
"""
TABLE = """
from bench.passthrough import WANTED, Report, table
def report(first, rate):
    return Report(percentiles={name: (first, 2 * first) for name in WANTED}, answers_per_s=rate)
print(table([(report(100, 2), report(110, 1)), (report(200, 4), report(200, 4)), (report(300, 3), report(270, 6))]))
"""


def timed(p50: float, unit: str = "ms") -> dict[str, Any]:
    return {"unit": unit, "avg": p50 * 1.5, "p50": p50, "p99": p50 * 3}


def report(**changes: Any) -> bytes:
    """As aiperf 0.13 writes it, as far as it is read."""
    whole = {
        "request_count": {"unit": "requests", "avg": 8.0},
        "request_throughput": {"unit": "requests/sec", "avg": 0.67},
        "time_to_first_token": timed(400.0),
        "inter_token_latency": timed(23.0),
        "inter_chunk_latency": timed(24.0),
        "request_latency": timed(1500.0),
        "error_summary": [],
    }
    return json.dumps({**whole, **changes}).encode()


def evaluate(code: str, given: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, input=given, capture_output=True, timeout=60)


def test_percentiles_are_read_and_the_mean_is_not_taken_for_one() -> None:
    done = evaluate(READ, report())
    assert done.returncode == 0, done.stderr
    assert b"'first token, ms': (400.0, 1200.0)" in done.stdout
    assert b"answers_per_s=0.67" in done.stdout


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"request_count": {"avg": 7.0}, "error_summary": [{"count": 1}]}, b"7 of 8 answers were good: [{'count': 1}]"),
        ({"time_to_first_token": timed(0.4, unit="sec")}, b"time_to_first_token is in sec, not in ms"),
    ],
)
def test_a_report_that_is_not_whole_or_in_other_units_measures_nothing(changes: dict[str, Any], said: bytes) -> None:
    done = evaluate(READ, report(**changes))
    assert done.returncode == 1
    assert said in done.stderr


def test_the_ratio_is_made_within_a_round_and_its_median_is_told() -> None:
    done = evaluate(TABLE)
    assert done.returncode == 0, done.stderr
    assert b"| first token, ms, p50 | 200 | 200 | 1.000 [0.900-1.100] |" in done.stdout
    assert b"| answers per second | 3 | 4 | 1.000 [0.500-2.000] |" in done.stdout
