"""`scripts/bench engines`: the embedded engine, and what Headrace adds to it. Half an hour on a quiet machine;
`--quick` takes a few minutes and tells little. With `--all` also every table that a command of its own takes
(`engine_tables.py`); `--list` says what there is, how long each takes, and which code made what RESULTS.md has."""

import asyncio
import re
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from bench import (
    batching,
    engine_batches,
    engine_choices,
    engine_measures,
    engine_served,
    engine_tables,
    engine_threads,
    loop_lag,
    openvino_path,
)
from bench.engine_tables import TABLES
from bench.process import say
from bench.report import RESULTS, host, versions
from bench.sections import read_sections, write_section

Numbers = dict[str, float]


class Measure(msgspec.Struct, frozen=True):
    """It takes about so many `minutes` on a quiet machine of two cores. `note` is told with its numbers: units, and
    what one must know to read them."""

    title: str
    take: Callable[[bool], Awaitable[Numbers]]
    minutes: float
    note: str = ""


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """`most` or `least` bounds a number of a measure."""

    text: str
    measure: str
    number: str
    most: float | None = None
    least: float | None = None


def _beside(quick: bool, *, streams: int, rounds: int) -> Awaitable[Numbers]:
    return engine_served.measure(streams, 1 if quick else rounds)


_TAKES = "Times to the first token in milliseconds, tokens by the engine's own count, each text new to every cache."
_SPREAD = "Medians of the takes, and [the least and the most]; ratios are made within a take."

# fmt: off
MEASURES = {
    "served_1": Measure(
        "1 stream: Headrace beside its engine driven directly", partial(_beside, streams=1, rounds=41), 1
    ),
    "served_16": Measure("16 streams", partial(_beside, streams=16, rounds=5), 1),
    "served_50": Measure("50 streams at 16 slots", partial(_beside, streams=50, rounds=3), 2),
    "long_prompt": Measure("a 2,000-token prompt arrives beside 8 streams", engine_measures.long_prompt, 1.5),
    "long_prompts": Measure("eight prompts of 1,800 tokens arrive beside one stream", engine_batches.long_prompts, 2.5),
    "batches": Measure("tokens in one step", engine_batches.batches, 4),
    "batching": Measure(
        "answers of mixed length, admitted as places become free and in static batches", batching.batching, 3,
        "Rates are medians of the rounds, both ways in turns, and [the least and the most]; the ratio is made within a "
        "round. Times to the first token are those of all requests of all rounds, in milliseconds, waiting included.",
    ),
    "prefix": Measure(
        "second turn of a thread of 1,000 tokens and more", engine_measures.prefix, 1,
        f"{_TAKES} {_SPREAD} What the chat template puts before every text is cached for the first turn too.",
    ),
    "restore": Measure(
        "the engine dies in an answer behind 1,000 tokens and more", engine_measures.restore, 2.5,
        f"{_TAKES} {_SPREAD} Reading the saved state is in the time, starting the process again is in neither.",
    ),
    "snapshots": Measure("what saving the state costs", engine_choices.snapshots, 1, _SPREAD),
    "cache_types": Measure("type of the KV cache", engine_choices.cache_types, 3),
    "guessing": Measure("n-gram guesses", engine_choices.guessing, 1, f"Tokens/s of one stream. {_SPREAD}"),
    "openvino": Measure("OpenVINO beside its library driven by hand, 16 streams", openvino_path.measure, 1),
    "threads": Measure("threads, alone and beside other work on every core", engine_threads.threads, 1.5),
    "loop_lag_served": Measure(
        "lag of a Headrace server's event loop while 8 runs stream over HTTP", loop_lag.in_a_server, 1,
        "Milliseconds. The server looks at its own loop every 2 ms; client, server and model share all cores. "
        "`busy_waited` is the longest time in line for a core, `busy_computed` the most that the loop's thread "
        "computed between two looks; uvloop's timers may be late by up to 1 ms with nobody to blame.",
    ),
    "loop_lag": Measure(
        "lag of a program's event loop beside 8 answers of the engine in it", loop_lag.in_a_program, 0.5,
        "Milliseconds, as in `loop_lag_served`, but the loop is the bench's own: there is no server and no client.",
    ),
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
    Goal(text="lag of a server's loop, worst ms", measure="loop_lag_served", number="busy_worst", most=10),
    Goal(text="lag of a program's loop, worst ms", measure="loop_lag", number="busy_worst", most=10),
)
# fmt: on

Results = dict[str, Numbers]
_PACKAGES = ("headrace", "xllamacpp", "openvino-genai")
_COMMIT = re.compile(r"commit ([0-9a-f]{7,}\+?|unknown)")


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asks for. `only` names some measures and tables, with commas between them; `everything` is
    all of them, and neither is the measures alone."""

    quick: bool = False
    only: str | None = None
    everything: bool = False
    as_json: bool = False
    write: bool = False

    @property
    def names(self) -> list[str]:
        if self.only:
            return self.only.split(",")
        return [*MEASURES, *TABLES] if self.everything else list(MEASURES)


def main(wanted: Wanted) -> int:
    """Take what is wanted, one after the other, and print tables. With `write`, each one's table goes into RESULTS.md
    as soon as it is there. One that fails is told and does not end the run; then the exit code is 1."""
    if wanted.quick and wanted.write:
        say("what --quick measures is for a look: leave one of --quick and --write out")
        return 2
    if unknown := [name for name in wanted.names if name not in MEASURES and name not in TABLES]:
        say(f"there is no measure {', '.join(unknown)}; there are {', '.join([*MEASURES, *TABLES])}")
        return 2
    where = _where()  # before anything: the code that runs is that of now
    results: Results = {}
    failed = [name for name in wanted.names if not _took(name, wanted, where, results)]
    if wanted.as_json:
        sys.stdout.write(msgspec.json.encode(results).decode() + "\n")
    elif results:
        print(f"{where}\n\n{tables(results)}")
    if missing := [name for name in TABLES if name not in wanted.names]:
        say(f"not taken: {', '.join(missing)} (scripts/bench engines --all, or --only with their names)")
    if failed:
        say(f"failed or missed a goal: {', '.join(failed)}")
    return 1 if failed else 0


def _took(name: str, wanted: Wanted, where: str, results: Results) -> bool:
    """Whether it went well. The numbers of a measure go into the results."""
    begun = time.monotonic()
    try:
        if name in TABLES:
            return engine_tables.take(name, quick=wanted.quick, write=wanted.write)
        numbers = results[name] = asyncio.run(_taken(name, wanted.quick))
        if wanted.write:
            write_section(RESULTS, _region(name), section(name, numbers, where))
        return True
    except Exception:  # an hour of other measures is not lost for one
        traceback.print_exc()
        return False
    finally:
        say(f"{name}: {time.monotonic() - begun:.0f} s")


async def _taken(name: str, quick: bool) -> Numbers:
    numbers = await MEASURES[name].take(quick)
    say(f"{name}: " + " ".join(f"{key}={value:.4g}" for key, value in numbers.items()))
    return numbers


def listing() -> str:
    """Every measure and table: its command, how long it takes on a quiet machine of two cores, and the code that made
    what RESULTS.md has of it. What RESULTS.md has and no command makes is told too."""
    written = read_sections(RESULTS)
    lines = ["| | what | minutes, about | command | in RESULTS.md |", "|---|---|---|---|---|"]
    for name in (*MEASURES, *TABLES):
        title, minutes, command = _described(name)
        made = written.pop(_region(name), None)
        lines.append(f"| {name} | {title} | {minutes:g} | `{command}` | {_made_by(made)} |")
    lines += ["", f"In all {sum(_described(name)[1] for name in (*MEASURES, *TABLES)):.0f} minutes."]
    lines += [f"RESULTS.md has a section that nothing here writes: {name}" for name in written]
    return "\n".join(lines)


def _described(name: str) -> tuple[str, float, str]:
    if name in TABLES:
        return TABLES[name].title, TABLES[name].minutes, TABLES[name].shown
    return MEASURES[name].title, MEASURES[name].minutes, f"scripts/bench engines --only {name}"


def _region(name: str) -> str:
    return TABLES[name].region if name in TABLES else f"engines {name}"


def _made_by(section: str | None) -> str:
    if section is None:
        return "**not there**"
    found = _COMMIT.search(section)
    return f"commit {found[1]}" if found else "**by a commit that is not told**"


def tables(results: Results) -> str:
    goals = _goals(results)
    lines = ["## Goals", "", *goals] if len(goals) > 2 else []
    for name, numbers in results.items():
        lines += ["", *_numbers(name, numbers)]
    return "\n".join(lines) + "\n"


def section(name: str, numbers: Numbers, where: str) -> str:
    """One measure with its goals, where and how it was taken."""
    title, *table = _numbers(name, numbers)
    goals = _goals({name: numbers})
    taken = [f"`scripts/bench engines --only {name}`, {where}", ""]
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
    rows = [f"| {key} | {_shown(key, numbers)} |" for key in numbers if not _is_an_end(key, numbers)]
    note = [MEASURES[name].note, ""] if MEASURES[name].note else []
    return [f"## {name}: {MEASURES[name].title}", "", *note, "| | |", "|---|---|", *rows]


def _is_an_end(key: str, numbers: Numbers) -> bool:
    """Of a range, which is told with its median."""
    name = key.removesuffix("_least").removesuffix("_most")
    return name != key and name in numbers


def _shown(key: str, numbers: Numbers) -> str:
    ends = [numbers[end] for end in (f"{key}_least", f"{key}_most") if end in numbers]
    least_and_most = f" [{'-'.join(map(_number, ends))}]" if ends else ""
    return f"{_number(numbers[key])}{least_and_most}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.4g}"


def _met(goal: Goal, value: float) -> bool:
    return (goal.most is None or value <= goal.most) and (goal.least is None or value >= goal.least)
