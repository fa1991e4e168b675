"""`scripts/bench engines`: the embedded engine, and what Headrace adds to it. A quarter of an hour on a quiet machine;
`--quick` takes a few minutes and tells little."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from bench import engine_batches, engine_choices, engine_measures, engine_served, engine_threads, openvino_path
from bench.process import say
from bench.report import RESULTS, host, versions
from bench.sections import write_section

Numbers = dict[str, float]


class Measure(msgspec.Struct, frozen=True):
    title: str
    take: Callable[[bool], Awaitable[Numbers]]


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """`most` or `least` bounds a number of a measure."""

    text: str
    measure: str
    number: str
    most: float | None = None
    least: float | None = None


def _beside(quick: bool, *, streams: int, rounds: int) -> Awaitable[Numbers]:
    return engine_served.measure(streams, 1 if quick else rounds)


# fmt: off
MEASURES = {
    "served_1": Measure("1 stream: Headrace beside its engine driven directly", partial(_beside, streams=1, rounds=41)),
    "served_16": Measure("16 streams", partial(_beside, streams=16, rounds=5)),
    "served_50": Measure("50 streams at 16 slots", partial(_beside, streams=50, rounds=3)),
    "long_prompt": Measure("a 2,000-token prompt arrives beside 8 streams", engine_measures.long_prompt),
    "long_prompts": Measure("eight prompts of 1,800 tokens arrive beside one stream", engine_batches.long_prompts),
    "batches": Measure("tokens in one step", engine_batches.batches),
    "prefix": Measure("second turn of a 1,000-token thread", engine_measures.prefix),
    "restore": Measure("the engine dies at 1,000 tokens", engine_measures.restore),
    "snapshots": Measure("what saving the state costs", engine_choices.snapshots),
    "cache_types": Measure("type of the KV cache", engine_choices.cache_types),
    "guessing": Measure("n-gram guesses", engine_choices.guessing),
    "openvino": Measure("OpenVINO beside its library driven by hand, 16 streams", openvino_path.measure),
    "threads": Measure("threads, alone and beside other work on every core", engine_threads.threads),
    "loop_lag": Measure("lag of the event loop beside 8 streams", engine_measures.loop_lag),
}
GOALS = (
    Goal(text="total time, 1 stream, ratio", measure="served_1", number="total_ratio", most=1.05),
    Goal(text="first token, 1 stream, added ms", measure="served_1", number="first_added_ms", most=3),
    Goal(text="tokens/s, 16 streams, ratio", measure="served_16", number="rate_ratio", least=0.95),
    Goal(text="tokens/s, 50 streams, ratio", measure="served_50", number="rate_ratio", least=0.95),
    Goal(text="gap p99, 16 streams, ratio", measure="served_16", number="gap_p99_ratio", most=1.3),
    Goal(text="gap p99, 50 streams, ratio", measure="served_50", number="gap_p99_ratio", most=1.3),
    Goal(text="gap p99 while a long prompt is read, ratio", measure="long_prompt", number="gap_p99_ratio", most=3),
    Goal(text="second turn over the cold one", measure="prefix", number="second_over_cold", most=0.2),
    Goal(text="recomputing over restoring", measure="restore", number="recomputed_over_restored", least=3),
    Goal(text="KV memory, q8_0 over f16", measure="cache_types", number="q8_0_over_f16", most=0.55),
    Goal(text="KV q8_0, perplexity over f16's", measure="cache_types", number="q8_0_perplexity_ratio", most=1.01),
    Goal(text="OpenVINO, tokens/s, 16 streams, ratio", measure="openvino", number="rate_ratio", least=0.95),
    Goal(text="OpenVINO, gap p99, 16 streams, ratio", measure="openvino", number="gap_p99_ratio", most=1.3),
    Goal(text="lag of the loop, worst ms", measure="loop_lag", number="busy_worst", most=10),
)
# fmt: on

Results = dict[str, Numbers]
_PACKAGES = ("headrace", "xllamacpp", "openvino-genai")


def main(*, quick: bool, only: str | None, as_json: bool, write: bool) -> int:
    """Take the measures, all or some with commas between them, and print tables. With `write`, each one's table goes
    into RESULTS.md as soon as it is there."""
    if quick and write:
        say("what --quick measures is for a look: leave one of --quick and --write out")
        return 2
    wanted = only.split(",") if only else list(MEASURES)
    results: Results = {}
    for name in wanted:
        if name not in MEASURES:
            say(f"there is no measure {name}; there are {', '.join(MEASURES)}")
            return 2
        results[name] = asyncio.run(_taken(name, quick))
        if write:
            write_section(RESULTS, f"engines {name}", section(name, results[name]))
    if as_json:
        sys.stdout.write(msgspec.json.encode(results).decode() + "\n")
    else:
        print(f"{_where()}\n\n{tables(results)}")
    return 0


async def _taken(name: str, quick: bool) -> Numbers:
    numbers = await MEASURES[name].take(quick)
    say(f"{name}: " + " ".join(f"{key}={value:.4g}" for key, value in numbers.items()))
    return numbers


def tables(results: Results) -> str:
    lines = ["## Goals", "", *_goals(results)]
    for name, numbers in results.items():
        lines += ["", *_numbers(name, numbers)]
    return "\n".join(lines) + "\n"


def section(name: str, numbers: Numbers) -> str:
    """One measure with its goals, where and how it was taken."""
    title, *table = _numbers(name, numbers)
    goals = _goals({name: numbers})
    taken = [f"`scripts/bench engines --only {name}`, {_where()}", ""]
    return "\n".join([title, "", *taken, *([*goals, ""] if len(goals) > 2 else []), *table[1:]])


def _where() -> str:
    return f"{host()[:-1]}, {versions(_PACKAGES)}"


def _goals(results: Results) -> list[str]:
    lines = ["| goal | wanted | measured | |", "|---|---|---|---|"]
    for goal in GOALS:
        value = results.get(goal.measure, {}).get(goal.number)
        if value is not None:
            wanted = f"≤ {goal.most:g}" if goal.most is not None else f"≥ {goal.least:g}"
            lines.append(f"| {goal.text} | {wanted} | {value:.3g} | {'met' if _met(goal, value) else '**missed**'} |")
    return lines


def _numbers(name: str, numbers: Numbers) -> list[str]:
    rows = [f"| {key} | {value:,.4g} |" for key, value in numbers.items()]
    return [f"## {name}: {MEASURES[name].title}", "", "| | |", "|---|---|", *rows]


def _met(goal: Goal, value: float) -> bool:
    return (goal.most is None or value <= goal.most) and (goal.least is None or value >= goal.least)
