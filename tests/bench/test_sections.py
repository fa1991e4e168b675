"""RESULTS.md is written in parts, and no command touches what another one has measured."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def write(path: Path, *parts: tuple[str, ...]) -> str:
    """`bench.sections` in a process of its own, since `bench` is no package of the tests."""
    code = (
        "import sys; from pathlib import Path; from bench import sections\n"
        f"for name, *rest in {parts!r}: getattr(sections, name)(Path(sys.argv[1]), *rest)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    return done.stderr


def test_a_section_is_replaced_and_all_others_stay_as_they_are(tmp_path: Path) -> None:
    results = tmp_path / "RESULTS.md"
    write(
        results,
        ("write_above", "# Results\n\nold"),
        ("write_section", "engines prefix", "## prefix\n\n| 1 |"),
        ("write_section", "batching", "## batching\n\n| 2 |"),
    )
    before = results.read_text()
    write(results, ("write_section", "engines prefix", r"## prefix" + "\n\n| \\1 3 |\n"))
    assert results.read_text() == before.replace("| 1 |", "| \\1 3 |")


def test_what_stands_above_the_line_is_replaced_and_the_sections_are_kept(tmp_path: Path) -> None:
    results = tmp_path / "RESULTS.md"
    write(results, ("write_section", "batching", "| 2 |"), ("write_above", "# Results\n\nold"))
    kept = results.read_text().partition("<!-- below")[2]
    write(results, ("write_above", "# Results\n\nnew"))
    above, _, below = results.read_text().partition("<!-- below")
    assert ("new" in above, "old" in above, below) == (True, False, kept)
    assert "| 2 |" in below


def test_a_file_whose_marks_are_damaged_is_left_alone_and_named(tmp_path: Path) -> None:
    results = tmp_path / "RESULTS.md"
    results.write_text("# Results\n\n<!-- begin: batching -->\n\nhalf of it\n")
    said = write(results, ("write_section", "batching", "new"))
    assert "needs one pair of marks" in said
    assert "half of it" in results.read_text()
