import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
SUITES = TESTS.parent / "src" / "headrace" / "testing"


def test_every_case_names_tests_that_there_are_or_says_what_it_waits_for() -> None:
    sources = [*TESTS.rglob("test_*.py"), *SUITES.rglob("*.py")]
    there = {name for path in sources for name in re.findall(r"def test_(\w+)", path.read_text(encoding="utf-8"))}
    cases = [
        line for line in (Path(__file__).parent / "README.md").read_text(encoding="utf-8").split("\n") if "→" in line
    ]
    assert len(cases) > 90
    for case in cases:
        names = re.findall(r"`(\w+)`", case)
        assert names or "waits for" in case, case
        assert not set(names) - there, case
