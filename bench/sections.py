"""Regions of RESULTS.md that belong to one measure each, so that each can be written again without the others."""

import re
from pathlib import Path

OTHERS = "<!-- below: what other commands measured -->\n"
"""`all --write` makes what stands above anew and keeps what stands below."""


def write_section(path: Path, name: str, text: str) -> None:
    """Replace the region called so, or add one at the end. Nothing else is touched. Raises ValueError for a file whose
    marks somebody has damaged."""
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    before = path.read_text() if path.exists() else OTHERS
    region = f"{begin}\n\n{text.strip()}\n\n{end}\n"
    if begin not in before and end not in before:
        path.write_text(f"{before.rstrip()}\n\n{region}")
        return
    if (before.count(begin), before.count(end)) != (1, 1) or before.index(begin) > before.index(end):
        raise ValueError(f"{path} needs one pair of marks, in order: {begin} and {end}")
    pattern = re.compile(f"{re.escape(begin)}.*{re.escape(end)}\n?", re.DOTALL)
    path.write_text(pattern.sub(lambda _: region, before))


def read_sections(path: Path) -> dict[str, str]:
    """The text of each region, by its name."""
    pattern = re.compile(r"<!-- begin: (.+?) -->\n(.*?)<!-- end: \1 -->", re.DOTALL)
    return {name: text.strip() for name, text in pattern.findall(path.read_text())}


def write_above(path: Path, text: str) -> None:
    """Replace what stands above the line, and keep what stands below it."""
    _, line, others = path.read_text().partition(OTHERS) if path.exists() else ("", "", "")
    path.write_text(text.rstrip() + f"\n\n{line or OTHERS}{others}")
