"""`scripts/bench engines`: the embedded engine, and what Headrace adds to it. Half an hour on a quiet machine;
`--quick` takes a few minutes and tells little. With `--all` also every table that a command of its own takes
(`engine_tables.py`); `--list` says what there is, how long each takes, and which code made what RESULTS.md has."""

import asyncio
import re
import sys
import time
import traceback

import msgspec

from bench import engine_tables
from bench.engine_measures import Numbers
from bench.engine_report import Results, section, tables
from bench.engine_suite import MEASURES
from bench.engine_tables import TABLES
from bench.process import say
from bench.report import RESULTS, host, versions
from bench.sections import read_sections, write_section

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


def _where() -> str:
    return f"{host()[:-1]}, {versions(_PACKAGES)}"
