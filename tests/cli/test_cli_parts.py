import io
import logging
import os
import socket
import sys
from pathlib import Path

import pytest

from headrace.cli.answer import status_text, summary
from headrace.cli.listener import listener
from headrace.cli.logs import JsonLines
from headrace.cli.replay import pause
from headrace.cli.serve import announcement
from headrace.cli.terminal import ProgressBar, clean
from headrace.events import Record, TextDelta
from headrace.state import Node, RunState, ToolCall, Turn


def turn(deltas: int) -> Turn:
    return Turn(turn=1, model="m", engine="e", started_seq=1, text="x" * deltas, text_deltas=deltas)


@pytest.mark.parametrize(
    ("state", "first", "said"),
    [
        (RunState(run_id="r", status="queued"), None, "waiting for the first token · 2.0 s"),
        (RunState(run_id="r", status="queued", queue_position=3), None, "queued at 3 · 2.0 s"),
        (RunState(run_id="r", status="queued", nodes=(Node(node="retrieve"),)), None, "retrieve · 2.0 s"),
        (RunState(run_id="r", status="queued", turns=(turn(31),)), 0.5, "first token 500 ms · 31 tokens · 20 tokens/s"),
        (
            RunState(
                run_id="r", status="queued", turns=(turn(1),), tool_calls=(ToolCall(call_id="c", name="clock", turn=1),)
            ),
            0.5,
            "clock · first token 500 ms · 1 token",
        ),
    ],
)
def test_the_status_line_says_what_is_under_way(state: RunState, first: float | None, said: str) -> None:
    assert status_text(state, elapsed=2.0, first_token=first) == said


def test_the_summary_names_the_run_and_how_it_ended_if_not_well() -> None:
    assert summary(RunState(run_id="r", status="completed"), (None, 1.0)) == "1.0 s · run r"
    assert summary(RunState(run_id="r", status="cancelled"), (None, 1.0)) == "cancelled · 1.0 s · run r"


def test_a_models_words_cannot_steer_the_terminal() -> None:
    assert clean("a\x1b[31mb\x07\x9b1m\tc\nd\re") == "a\ufffd[31mb\ufffd\ufffd1m\tc\nd\ufffde"


def test_a_listener_is_found_by_its_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = listener(port)
        if sys.platform == "linux":
            assert found is not None
            assert f"(pid {os.getpid()})" in found
    assert listener(port) is None


def test_without_proc_nobody_is_found(tmp_path: Path) -> None:
    assert listener(8321, proc=tmp_path) is None


def test_progress_away_from_a_terminal_is_one_line_for_each_step() -> None:
    out = io.StringIO()
    bar = ProgressBar(out)
    for done in range(100):
        bar("Unpacking", done, 100)
    bar("Indexing", 0, 0)
    assert out.getvalue() == "Unpacking …\nIndexing …\n"


def test_progress_on_a_terminal_is_drawn_once_for_each_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    bar = ProgressBar(out)
    for done in range(10_001):
        bar("Unpacking", done, 10_000)
    assert out.getvalue().count("\r") == 101
    assert out.getvalue().endswith("100 %\n")


def test_a_log_line_is_json_with_its_extras() -> None:
    record = logging.LogRecord("headrace", logging.INFO, "f", 1, "run %s ended", ("r",), None)
    record.run_id = "r"
    line = JsonLines().format(record)
    assert '"message":"run r ended"' in line
    assert '"run_id":"r"' in line
    assert "\n" not in line


def test_replay_waits_as_long_as_it_took_by_its_speed() -> None:
    first, second = (Record(run_id="r", seq=n, ts=1000 * n, event=TextDelta(text="x")) for n in (1, 3))
    assert pause(None, first, 1.0) == 0
    assert pause(first, second, 1.0) == 2.0
    assert pause(first, second, 4.0) == 0.5
    assert pause(first, second, 0.0) == 0
    assert pause(second, first, 1.0) == 0


def test_the_announcement_has_three_ways_in_and_the_key_where_one_is_wanted() -> None:
    said = announcement("http://h:1", ["a", "b"], with_key=False)
    assert said.count("curl") == 3
    assert "Bearer" not in said
    assert announcement("http://h:1", ["a"], with_key=True).count("Bearer") == 3
