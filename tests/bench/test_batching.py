"""The comparison of batching itself, with a scripted engine that gives so many answers at once."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

COMPARED = """
import asyncio, json
from bench.batching import compare, told
from headrace.engine.pool.pool import EnginePool
from headrace.engine.scripted import Deltas, ScriptedEngine
from virtual_time import run_virtually

asked = []

def answer(request):
    if request.prompt is not None:  # else the pool asks whether the engine lives
        asked.append((request.prompt, request.max_tokens))
    return [*Deltas(request.max_tokens or 1)]

async def scenario():
    engine = ScriptedEngine(answer, rate=10.0, first_token=0.1)
    async with EnginePool({"a": engine}, limit=4) as four:
        rounds = await compare(four, slots=4, lengths=(8, 8, 8, 96) * 4, rounds=2)
    print(json.dumps([told(rounds), asked, [list(one) for one in rounds]]))

run_virtually(scenario())
"""

TOLD = """
import json
from bench.batching import Outcome, told

def outcome(rate, *first):
    return Outcome(tokens_per_s=rate, first=first)

print(json.dumps(told([
    {"continuous": outcome(100, 1, 2, 3), "static": outcome(50, 10, 20, 30)},
    {"continuous": outcome(90, 4, 5, 6), "static": outcome(90, 40, 50, 60)},
    {"continuous": outcome(120, 7, 8, 900), "static": outcome(100, 70, 80, 90)},
])))
"""


def evaluate(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT / 'tests'}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_both_ways_take_turns_and_batches_make_the_late_ones_wait_longer() -> None:
    done = evaluate(COMPARED)
    assert done.returncode == 0, done.stderr
    told, asked, orders = json.loads(done.stdout)
    assert orders == [["continuous", "static"], ["static", "continuous"]]
    assert told["requests_a_round"] == 16
    assert told["continuous_tokens_per_s"] < 4 * 10, "by the clock of the loop, in which the engine speaks"
    assert told["continuous_over_static"] > 2
    assert 2 * told["continuous_first_p95_ms"] < told["static_first_p95_ms"]
    warm, *rounds = asked[:4], asked[4:20], asked[20:36], asked[36:52], asked[52:]
    assert len({prompt for prompt, _ in asked}) == len(asked) == 4 + 4 * 16
    lengths = [sorted(length for _, length in requests) for requests in rounds]
    assert lengths == [sorted((8, 8, 8, 96) * 4)] * 4
    assert len(warm) == 4


def test_a_ratio_is_made_within_a_round_and_the_first_tokens_are_those_of_all_rounds() -> None:
    done = evaluate(TOLD)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    ratio = [told[f"continuous_over_static{end}"] for end in ("", "_least", "_most")]
    assert ratio == [1.2, 1.0, 2.0]
    assert [told[f"continuous_first_{at}_ms"] for at in ("p50", "p95")] == [5, 900]
    assert [told[f"static_first_{at}_ms"] for at in ("p50", "p95")] == [50, 90]
