"""What a terminal is shown beside the output itself: a status line, a progress bar. Silent where there is none."""

import os
import re
import sys
from types import TracebackType
from typing import TextIO

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def clean(text: str) -> str:
    """Text that cannot move the cursor or colour the terminal: a model's words are not ours."""
    return _CONTROLS.sub("\ufffd", text)


def dim(text: str) -> str:
    return f"\x1b[2m{text}\x1b[0m"


class StatusLine:
    """The terminal's last row while it is entered; the output scrolls above it, as with apt's progress bar."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._rows = 0
        self.shown = is_terminal(self._stream)

    def __enter__(self) -> "StatusLine":
        self._fit()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._rows:
            self._write(f"\x1b7\x1b[r\x1b[{self._rows};1H\x1b[2K\x1b8")

    def show(self, text: str) -> None:
        if self.shown:
            columns = self._fit()
            self._write(f"\x1b7\x1b[{self._rows};1H\x1b[2K{dim(clean(text)[: columns - 1])}\x1b8")

    def _fit(self) -> int:
        """Keep the last row for ourselves, also after a resize. Returns the columns."""
        if not self.shown:
            return 80
        size = os.get_terminal_size(self._stream.fileno())
        rows = max(2, size.lines)
        if rows != self._rows:
            # A new line first, and up again: there is room below even if the cursor stood in the last row.
            self._rows = rows
            self._write(f"\n\x1b7\x1b[1;{rows - 1}r\x1b8\x1b[1A")
        return max(2, size.columns)

    def _write(self, text: str) -> None:
        sys.stdout.flush()
        self._stream.write(text)
        self._stream.flush()


class ProgressBar:
    """Draws `(what, done, total)`: a bar on a terminal, elsewhere one line for each new `what`."""

    WIDTH = 30

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._bar = is_terminal(self._stream)
        self._what = ""
        self._percent = -1

    def __call__(self, what: str, done: int, total: int) -> None:
        percent = min(100, done * 100 // total) if total else 0
        if (what, percent) == (self._what, self._percent):
            return
        if self._bar:
            filled = self.WIDTH * percent // 100
            end = "\n" if total and done >= total else ""
            self._stream.write(f"\r\x1b[2K{what} {'█' * filled}{'░' * (self.WIDTH - filled)} {percent:3} %{end}")
        elif what != self._what:
            self._stream.write(f"{what} …\n")
        self._what, self._percent = what, percent
        self._stream.flush()
