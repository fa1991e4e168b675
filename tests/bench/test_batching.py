"""The comparison of batching itself, with a scripted engine that gives so many answers at once."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

CODE = """
import asyncio
from bench.batching import compare, table
from headrace.engine.pool.pool import EnginePool
from headrace.engine.scripted import Deltas, ScriptedEngine
from virtual_time import run_virtually

async def scenario():
    engine = ScriptedEngine(lambda request: [*Deltas(request.max_tokens or 1)], rate=10.0, first_token=0.1)
    async with EnginePool({"a": engine}, limit=4) as four:
        outcomes = await compare(four, slots=4, lengths=(8, 8, 8, 96) * 4)
        for outcome in outcomes.values():
            print(len(outcome.first), round(outcome.first_at(95)))
        assert "static" in table(outcomes)

run_virtually(scenario())
"""


def test_every_request_is_counted_and_batches_make_the_late_ones_wait_longer() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT / 'tests'}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    continuous, static = (line.split() for line in done.stdout.splitlines())
    assert continuous[0] == static[0] == "16"
    assert 2 * int(continuous[1]) < int(static[1])
