"""The benchmark of the embedded engine works: one short measure through the port, and the table."""

import json
import os
import re
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
    assert numbers["takes"] == 2
    assert numbers["prompt_tokens_least"] >= 200
    # The whole first turn is found again, and nothing of the text was there before it.
    assert numbers["second_cached_least"] >= numbers["prompt_tokens_least"]
    assert numbers["cold_cached_most"] < 50
    assert numbers["second_over_cold_least"] <= numbers["second_over_cold"] <= numbers["second_over_cold_most"]


@pytest.mark.model
def test_what_is_restored_is_beside_what_is_read_anew_and_neither_is_the_other() -> None:
    command = [sys.executable, "-m", "bench", "engines", "--quick", "--only", "restore", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=True)
    numbers = json.loads(done.stdout)["restore"]
    assert numbers["tokens_least"] >= 200
    assert numbers["answers_restored"] == numbers["takes"] == 1
    assert numbers["restored_cached_least"] >= 200
    assert numbers["recomputed_cached_most"] == 0


def test_a_goal_that_was_missed_says_so_and_one_that_was_not_measured_is_left_out() -> None:
    results = {"prefix": {"second_over_cold": 0.3}, "restore": {"recomputed_over_restored": 15.0}}
    code = f"from bench.engine_report import tables; print(tables({results!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    goals = [line for line in done.stdout.splitlines() if "≤" in line or "≥" in line]
    assert ["missed" in goal for goal in goals] == [True, False]


def test_a_measure_is_written_with_its_own_goals_and_how_it_was_taken() -> None:
    code = (
        "from bench.engine_report import section\n"
        "print(section('prefix', {'second_over_cold': 0.3}, 'Here, commit 1234567.'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("## prefix: second turn")
    assert "`scripts/bench engines --only prefix`, Here, commit 1234567." in done.stdout
    assert "tokens by the engine's own count" in done.stdout
    assert [line for line in done.stdout.splitlines() if "≤" in line] == [
        "| second turn over the cold one | ≤ 0.2 | 0.3 | **missed** |"
    ]


def test_a_range_is_told_with_its_median_and_what_is_only_a_least_or_a_most_is_told_by_its_name() -> None:
    numbers = {"second_first": 20000.4, "second_first_least": 0.5, "second_first_most": 30000.0, "tokens_least": 1001.0}
    code = f"from bench.engine_report import tables; print(tables({{'prefix': {numbers}}}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ") and "---" not in line]
    assert rows[1:] == ["| second_first | 20,000 [0.5-30,000] |", "| tokens_least | 1,001 |"]
    assert "Goals" not in done.stdout  # none of them was measured


def test_what_a_quick_look_measures_is_never_written() -> None:
    command = [sys.executable, "-m", "bench", "engines", "--quick", "--write", "--only", "prefix"]
    before = (ROOT / "bench" / "RESULTS.md").read_bytes()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--quick" in done.stderr
    assert (ROOT / "bench" / "RESULTS.md").read_bytes() == before


def engines(*arguments: str, code: str = "") -> "subprocess.CompletedProcess[str]":
    """`scripts/bench engines`, after some code that changes what there is to take."""
    run = (
        f"import sys\nsys.argv[1:] = {['engines', *arguments]!r}\n{code}\nfrom bench.cli import main\nsys.exit(main())"
    )
    return subprocess.run(
        [sys.executable, "-c", run], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )


FAKES = """
from pathlib import Path
from bench import engine_tables, engines
from bench.engine_tables import Table
from bench.engine_suite import Measure

async def fine(quick): return {"number": 1.0}
async def broken(quick): raise RuntimeError("the engine is not there")

engines.MEASURES.clear()
engines.MEASURES.update(first=Measure("one", broken, 1), second=Measure("two", fine, 1))
engine_tables.TABLES.clear()
engine_tables.TABLES.update(
    third=Table(title="three", region="third", module="json.tool", minutes=1, quick=("--help",)),
    fourth=Table(title="four", region="fourth", module="x", minutes=1, python=".venvs/none/python", made_by="MAKER"),
    fifth=Table(title="five", region="fifth", module="json.tool", minutes=1, quick=("--no-such-flag",)),
)
"""


def test_all_takes_the_measures_and_every_table_one_after_the_other_and_says_what_failed() -> None:
    done = engines("--all", "--quick", code=FAKES)
    assert done.returncode == 1
    assert "| number | 1 |" in done.stdout
    assert "the engine is not there" in done.stderr
    assert "MAKER makes it" in done.stderr
    assert "failed or missed a goal: first, fourth, fifth" in done.stderr
    took = [line.split(":")[0] for line in done.stderr.splitlines() if line.endswith(" s")]
    assert took == ["first", "second", "third", "fourth", "fifth"]


def test_without_all_the_tables_that_were_not_taken_are_named() -> None:
    done = engines("--only", "second", code=FAKES)
    assert done.returncode == 0
    assert "not taken: third, fourth, fifth" in done.stderr


def test_the_list_says_which_code_made_a_section_which_there_is_none_of_and_which_nobody_makes(tmp_path: Path) -> None:
    results = tmp_path / "RESULTS.md"
    results.write_text(
        "<!-- begin: engines first -->\n\nHere, Linux 6.1, commit 0123abcde+.\n\n<!-- end: engines first -->\n"
        "<!-- begin: third -->\n\nlong ago\n\n<!-- end: third -->\n"
        "<!-- begin: engines gone -->\n\nx\n\n<!-- end: engines gone -->\n"
    )
    done = engines("--list", code=f"{FAKES}\nengines.RESULTS = Path({str(results)!r})")
    assert done.returncode == 0, done.stderr
    rows = {line.split("|")[1].strip(): line for line in done.stdout.splitlines() if line.startswith("| ")}
    assert "commit 0123abcde+ |" in rows["first"]
    assert "**not there**" in rows["second"]
    assert "not told" in rows["third"]
    assert "nothing here writes: engines gone" in done.stdout


def test_results_has_no_section_of_engines_that_no_command_makes() -> None:
    done = engines("--list")
    assert done.returncode == 0, done.stderr
    assert "passthrough" in done.stdout
    assert "nothing here writes" not in done.stdout


def test_the_commit_of_the_code_is_in_every_line_that_says_where_something_was_measured(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys\n"
        "from pathlib import Path\n"
        "from bench import report\n"
        "report.ROOT = Path(sys.argv[1])\n"
        "print(report.host())\n"
        "def git(*words): subprocess.run(('git', '-C', sys.argv[1], '-c', 'user.name=x', '-c', 'user.email=x', *words),"
        " check=True, capture_output=True)\n"
        "git('init')\n"
        "for name in ('src', 'bench'): (report.ROOT / name).mkdir()\n"
        "for name in ('src/a', 'bench/RESULTS.md', 'pyproject.toml'): (report.ROOT / name).write_text('x')\n"
        "git('add', '.'); git('commit', '-m', 'x')\n"
        "for changed in ('bench/RESULTS.md', 'src/a'):\n"
        "    report.commit.cache_clear()\n"
        "    (report.ROOT / changed).write_text('y')\n"
        "    print(report.host())\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # a hook's
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert done.returncode == 0, done.stderr
    nowhere, clean, changed = (re.search(r"Linux .*, commit (.*)\.$", line) for line in done.stdout.splitlines())
    assert nowhere is not None
    assert clean is not None
    assert changed is not None
    assert nowhere[1] == "unknown"
    assert re.fullmatch("[0-9a-f]{9}", clean[1])  # what a measure writes is no change of the code
    assert changed[1] == f"{clean[1]}+"
