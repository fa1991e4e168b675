"""What a command finds, line by line: shown as it comes, and with `--write` kept in RESULTS.md."""

import sys

from bench.process import say
from bench.report import RESULTS
from bench.sections import write_section


class Telling:
    """Call it with each line, or several in one. `command` is told with the arguments that it was given."""

    def __init__(self, title: str, command: str) -> None:
        self._lines = [f"## {title}", "", f"`{' '.join([command, *sys.argv[1:]])}`", ""]

    def __call__(self, text: str = "") -> None:
        self._lines.append(text)
        print(text, flush=True)

    @property
    def text(self) -> str:
        return "\n".join(self._lines)

    def write(self, name: str) -> None:
        """Into the region of RESULTS.md that is called so."""
        write_section(RESULTS, name, self.text)
        say(f"wrote {RESULTS}")
