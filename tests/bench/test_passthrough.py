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
from bench.passthrough import WANTED, table
def report(first):
    return {name: first for name in WANTED}
print(table([
    (report(100), report(110), report(100)),
    (report(100), report(300), report(300)),
    (report(220), report(180), report(180)),
]))
"""


def timed(p50: float, unit: str = "ms") -> dict[str, Any]:
    return {"unit": unit, "avg": p50 * 1.5, "p50": p50, "p90": p50 * 2, "p99": p50 * 3}


def report(**changes: Any) -> bytes:
    """As aiperf 0.13 writes it, as far as it is read."""
    whole = {
        "request_count": {"unit": "requests", "avg": 8.0},
        "request_throughput": {"unit": "requests/sec", "avg": 0.67},
        "time_to_first_token": timed(400.0),
        "inter_token_latency": timed(23.0),
        "inter_chunk_latency": timed(24.0),
        "request_latency": timed(1500.0),
        "input_sequence_length": {"unit": "tokens", "avg": 51.0},
        "output_sequence_length": {"unit": "tokens", "avg": 48.0},
        "error_summary": [],
    }
    return json.dumps({**whole, **changes}).encode()


def evaluate(code: str, given: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, input=given, capture_output=True, timeout=60)


def test_percentiles_are_read_and_the_mean_is_not_taken_for_one() -> None:
    done = evaluate(READ, report())
    assert done.returncode == 0, done.stderr
    for told in (b"'first token, ms, p50': 400.0", b"'first token, ms, p90': 800.0", b"pieces, ms, p99': 72.0"):
        assert told in done.stdout
    assert b"'answers per second': 0.67" in done.stdout


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


def test_the_ratio_is_made_within_a_round_with_what_came_before_and_after_and_noise_is_told_beside_it() -> None:
    done = evaluate(TABLE)
    assert done.returncode == 0, done.stderr
    told = b"| 200 | 180 | 1.100 [0.900-1.500] | 1.000 [0.818-3.000] |"
    assert b"| first token, ms, p50 " + told in done.stdout


def test_the_client_is_never_told_to_ask_without_a_pause_for_a_free_place() -> None:
    """aiperf spins while it waits for one, and takes a core from those who are measured, unless a rate is given too."""
    code = (
        "from pathlib import Path\n"
        "from bench.passthrough import Aiperf, Target\n"
        "import bench.passthrough as passthrough\n"
        "passthrough.make_tiny_model = lambda *_, **__: None\n"
        "command = Aiperf(Path('python'), Path('.'))._command(Target('x', 'http://x'), Path('here'), 4, 8)\n"
        "print(' '.join(command))"
    )
    done = evaluate(code)
    assert done.returncode == 0, done.stderr
    assert b"--concurrency 4 --request-rate 100 --request-rate-mode constant " in done.stdout
