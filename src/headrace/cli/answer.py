"""An answer on its way to the terminal: the text as it comes, the status beside it, the sources after it."""

import sys
import time
from typing import TextIO

from headrace.cli.terminal import StatusLine, clean, dim, is_terminal
from headrace.client.frames import Snapshot
from headrace.client.session import Item
from headrace.client.text import Retracted, said
from headrace.events import InputRequested, Record
from headrace.state import RunState


class AnswerView:
    """Shows one run. Piped, the output is the answer's text and nothing else."""

    def __init__(self, status: StatusLine, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._status = status
        self._pretty = is_terminal(self._out)
        self._started = time.monotonic()
        self._first: float | None = None
        self._column = 0

    def take(self, item: Item) -> None:
        for piece in said(item, spoke=self._first is not None):
            if isinstance(piece, Retracted):
                self._withdraw(piece)
            else:
                self._say(piece)
        if isinstance(item, Record) and isinstance(item.event, InputRequested):
            self._note(f"It waits for an answer to {item.event.input_id}: {item.event.prompt or item.event.kind}")
        if isinstance(item, Snapshot):
            self._note("Older records of this run are no longer kept; this is its state.")

    def refresh(self, state: RunState) -> None:
        """Draw the status line."""
        now = time.monotonic()
        first = None if self._first is None else self._first - self._started
        self._status.show(status_text(state, elapsed=now - self._started, first_token=first))

    def finish(self, state: RunState) -> None:
        """What is left to say at the end."""
        if self._first is None and state.output:
            self._say(state.output)
        if self._column:
            self._out.write("\n")
        if self._pretty:
            for number, source in enumerate(state.sources, 1):
                place = source.url or source.path or ""
                self._out.write(dim(clean(f"[{number}] {source.title}  {place}")) + "\n")
            self._out.write(dim(clean(summary(state, self._times()))) + "\n")
        self._out.flush()

    def _times(self) -> tuple[float | None, float]:
        first = None if self._first is None else self._first - self._started
        return first, time.monotonic() - self._started

    def _say(self, text: str) -> None:
        if self._first is None:
            self._first = time.monotonic()
        self._out.write(clean(text) if self._pretty else text)
        self._out.flush()
        self._column = 0 if text.endswith("\n") else 1

    def _withdraw(self, retracted: Retracted) -> None:
        self._note(f"What was said so far is withdrawn ({retracted.reason}); it begins again:")

    def _note(self, text: str) -> None:
        """A remark of ours; the reader of a pipe finds it on standard error."""
        if self._pretty:
            self._out.write(("\n" if self._column else "") + dim(clean(text)) + "\n")
            self._column = 0
        else:
            print(text, file=sys.stderr)


def status_text(state: RunState, *, elapsed: float, first_token: float | None) -> str:
    """One line on what the run is doing. Times in seconds."""
    doing = _doing(state)
    if first_token is None:
        return " · ".join([*(doing or ["waiting for the first token"]), f"{elapsed:.1f} s"])
    tokens = sum(turn.text_deltas for turn in state.turns)
    return " · ".join([*doing, f"first token {_ms(first_token)}", *_rate(tokens, elapsed - first_token)])


def summary(state: RunState, times: tuple[float | None, float]) -> str:
    """The last line: how it went, and which run it was."""
    first, elapsed = times
    tokens = sum(turn.text_deltas for turn in state.turns)
    parts: list[str] = [] if state.status == "completed" else [state.status]
    if first is not None:
        parts += [f"first token {_ms(first)}", *_rate(tokens, elapsed - first)]
    return " · ".join([*parts, f"{elapsed:.1f} s", f"run {state.run_id}"])


def _doing(state: RunState) -> list[str]:
    """What is under way: the queue, nodes, tools."""
    queued = [f"queued at {state.queue_position}"] if state.queue_position else []
    nodes = [node.node for node in state.nodes if node.status == "running"]
    tools = [call.name for call in state.tool_calls if not call.done]
    waiting = ["waiting for an answer"] if state.status == "waiting" else []
    return queued + nodes + tools + waiting


def _rate(tokens: int, seconds: float) -> list[str]:
    """Tokens, and tokens a second once there are enough for a rate."""
    shown = [f"{tokens} token{'s' * (tokens != 1)}"]
    return [*shown, f"{(tokens - 1) / seconds:.0f} tokens/s"] if tokens > 4 and seconds > 0.05 else shown


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.0f} s"
