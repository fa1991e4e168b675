"""The probe of an event loop sees what holds it up, and the bench reads the one in a server's process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def evaluate(code: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run code in the repository's root, where `bench` can be imported."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


HELD_UP = """
import asyncio, os, signal, sys, time
from pathlib import Path
from bench.loop_probe import Look, LoopProbe, write_when_asked
import msgspec

async def main():
    path = Path(sys.argv[1])
    with LoopProbe() as probe:
        write_when_asked(probe, path)
        while not probe.looks:
            await asyncio.sleep(0.001)
        begun, enough = time.perf_counter(), time.thread_time() + 0.1
        while time.thread_time() < enough: pass
        ended = time.perf_counter()
        seen = len(probe.looks)
        while len(probe.looks) == seen:
            await asyncio.sleep(0.001)
        os.kill(os.getpid(), signal.SIGUSR1)
        while not path.exists():
            await asyncio.sleep(0.001)
    held_up = max(msgspec.json.decode(path.read_bytes(), type=list[Look]), key=lambda look: look.computed)
    left = len(probe.looks)
    await asyncio.sleep(0.05)
    print(held_up.late > (ended - begun) * 1e3 - 2, held_up.computed >= 100, held_up.at >= ended)
    print(len(probe.looks) - left)

asyncio.run(main())
"""


def test_a_loop_that_is_held_up_is_seen_to_be_late_and_to_compute_and_the_probe_ends_with_its_context(
    tmp_path: Path,
) -> None:
    done = evaluate(HELD_UP, str(tmp_path / "looks"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "True", "True", "0"]


def test_what_was_late_is_counted_and_too_few_looks_are_no_measure() -> None:
    code = (
        "from bench.loop_lag import numbers\n"
        "from bench.loop_probe import Look\n"
        "def look(late, waited=0.0, computed=0.0): return Look(1.0, late, waited, computed)\n"
        "rest = [look(0.5), look(0.5)]\n"
        "found = numbers(rest, [look(1.0), look(10.0, waited=3.0), look(11.0), look(12.0, computed=4.0)])\n"
        "print(*(found[name] for name in ('busy_worst', 'busy_over_10_ms', 'busy_waited', 'busy_computed')))\n"
        "try: numbers(rest, [look(1.0)])\n"
        "except ValueError as exc: print(exc)"
    )
    done = evaluate(code)
    assert done.returncode == 0, done.stderr
    found, refused = done.stdout.splitlines()
    assert found == "12.0 2 3.0 4.0"
    assert "1 at work" in refused


@pytest.mark.model
def test_a_server_with_the_model_looks_at_its_own_loop_while_runs_stream() -> None:
    command = [sys.executable, "-m", "bench", "engines", "--quick", "--only", "loop_lag_served", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["loop_lag_served"]
    assert found["runs_at_once"] == 8
    assert found["busy_looks"] > 100
    assert found["busy_worst"] >= found["busy_p99"] >= found["busy_p50"]
    # The server's loop, not that of the process which asks: it computes frames for every token.
    assert found["busy_computed"] > 0
