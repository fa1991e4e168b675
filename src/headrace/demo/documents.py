"""The documents as passages: one sentence each, with its page, its heading and its place in the file.

A page is Markdown with one sentence per line, so a line is a passage. Code and tables are for people to read, not for
answers.
A passage of Chinese pages (`zh/`) answers Chinese questions only.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from headrace.errors import ConfigError

Lang = Literal["en", "zh"]


class Passage(msgspec.Struct, frozen=True, kw_only=True):
    """`start` and `end` are characters in the page; `page` is a path below the documents' folder."""

    page: str
    title: str
    heading: str
    start: int
    end: int
    text: str

    @property
    def id(self) -> str:
        return f"{self.page}#{self.start}"

    @property
    def lang(self) -> Lang:
        return "zh" if self.page.startswith("zh/") else "en"

    @property
    def in_context(self) -> str:
        """The sentence with what it stands under: what is embedded and searched."""
        return f"{self.heading or self.title}: {self.text}"


def documents_dir() -> Path:
    """`docs/` of a source tree, or the copy in the installed package.

    Raises:
        ConfigError: neither is there.
    """
    here = Path(__file__).resolve()
    for folder in (here.parent / "docs", here.parents[3] / "docs"):
        if (folder / "index.md").is_file():
            return folder
    raise ConfigError("The demo's documents are not installed.", hint="Install headrace again, from its wheel.")


def load_pages(folder: Path) -> dict[str, str]:
    """Every page's text by its path, in a stable order."""
    paths = sorted(folder.rglob("*.md"))
    return {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in paths}


def passages_of(page: str, text: str) -> list[Passage]:
    """The sentences of one page."""
    title = heading = ""
    found = []
    for start, line in _prose(text):
        if line.startswith("# "):
            title, heading = line[2:].strip(), ""
        elif line.startswith("#"):
            heading = line.lstrip("#").strip()
        else:
            end = start + len(line)
            found.append(Passage(page=page, title=title, heading=heading, start=start, end=end, text=line))
    return found


def load_passages(folder: Path) -> list[Passage]:
    return [passage for page, text in load_pages(folder).items() for passage in passages_of(page, text)]


def language(text: str) -> Lang:
    """Chinese as soon as a few of its characters are Chinese: English names are common in Chinese questions."""
    han = len(re.findall(r"[\u4e00-\u9fff]", text))
    return "zh" if han >= 2 or (han and len(text) <= 4) else "en"


def _prose(text: str) -> Iterator[tuple[int, str]]:
    """(first character, line) of every line that is neither empty nor code nor a table's row."""
    in_code = False
    start = 0
    for raw in text.splitlines(keepends=True):
        line = raw.rstrip("\n")
        if line.startswith("```"):
            in_code = not in_code
        elif line.strip() and not in_code and not line.startswith("|"):
            yield start, line
        start += len(raw)
