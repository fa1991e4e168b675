"""The command as a process, against a server that is one too."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

HEADRACE = [sys.executable, "-m", "headrace.cli"]

APP = """
import asyncio
from headrace.agent.app import App
from headrace.engine.scripted import ScriptedEngine
from headrace.errors import AgentFailed
from headrace.events import NodeStarted, RunFinished, SourceCited, TextDelta, TurnStarted

class Talker:
    name, description, resumable = "talker", "Says three words.", False
    engine = ScriptedEngine("")

    async def run(self, context):
        if context.question == "fail":
            raise AgentFailed("It broke.", hint="Mend it.")
        context.emit(NodeStarted(node="retrieve"))
        context.emit(TurnStarted(turn=1, model="m", engine="e"))
        for word in ["one ", "two ", "th\\x1b[2Jree"]:
            context.emit(TextDelta(text=word))
            await asyncio.sleep(0)
        if context.question == "wait":
            await asyncio.Event().wait()
        context.emit(SourceCited(id="1", title="The Title", path="docs/page.md"))
        return RunFinished(status="completed", output="")

app = App(Talker())
not_an_app = 5
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    (folder / "my_app.py").write_text(APP)
    return folder


def environment(**extra: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HEADRACE_", "OPENAI_"))}
    return {**kept, "PYTHONUNBUFFERED": "1", **extra}


@pytest.fixture(scope="module")
def url(folder: Path) -> Generator[str, None, None]:
    command = [*HEADRACE, "serve", "my_app:app", "--port", "0", "--durability", "memory"]
    with subprocess.Popen(command, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().split()[-1]
        server.terminate()
        assert server.wait(20) == 0


def headrace(*arguments: str, cwd: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HEADRACE, *arguments], cwd=cwd, env=environment(**extra), capture_output=True, text=True, timeout=60
    )


def last_run(url: str, folder: Path) -> str:
    listed = headrace("runs", "--json", "--limit", "1", cwd=folder, HEADRACE_URL=url)
    return str(json.loads(listed.stdout)["run_id"])


def test_piped_the_answer_is_its_text_and_nothing_else(url: str, folder: Path) -> None:
    done = headrace("run", "hello", cwd=folder, HEADRACE_URL=url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "one two th\x1b[2Jree\n", "")


def test_a_question_can_come_from_standard_input(url: str, folder: Path) -> None:
    done = subprocess.run(
        [*HEADRACE, "run", "-", "--url", url],
        input="hello",
        env=environment(),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.startswith("one two")


def test_a_failed_run_is_exit_code_1_and_one_line_with_a_hint(url: str, folder: Path) -> None:
    done = headrace("run", "fail", "--url", url, cwd=folder)
    assert (done.returncode, done.stderr) == (1, "headrace: It broke.\n  Mend it.\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", " "], "empty"),
        (["tail", "nothing"], "no run"),
        (["cancel", "nothing"], "no run"),
        (["run", "hi", "--agent", "nobody"], "no agent"),
        (["replay", "nothing", "--speed", "-1"], "negative"),
        (["serve", "my_app"], "module:app"),
        (["serve", "my_ap:app"], "cannot be imported"),
        (["serve", "my_app:ap"], "my_app:app"),
        (["serve", "my_app:not_an_app"], "not an app"),
        (["serve", "my_app:app", "--port", "many"], "server.port"),
        (["config", "--config", "missing.toml"], "missing.toml"),
        (["frobnicate"], "invalid choice"),
        (["tail"], "required"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_says_what_is_wrong(
    arguments: list[str], said: str, url: str, folder: Path
) -> None:
    done = headrace(*arguments, cwd=folder, HEADRACE_URL=url)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_debug_shows_where_an_error_came_from(url: str, folder: Path) -> None:
    assert "Traceback" in headrace("tail", "nothing", "--debug", cwd=folder, HEADRACE_URL=url).stderr


def test_a_server_that_does_not_answer_is_said_so(folder: Path) -> None:
    done = headrace("run", "hi", "--url", "http://127.0.0.1:9", cwd=folder)
    assert done.returncode == 1
    assert "Nothing answers at http://127.0.0.1:9" in done.stderr


def test_a_taken_port_names_who_has_it(url: str, folder: Path) -> None:
    done = headrace("serve", "my_app:app", "--port", url.rpartition(":")[2], cwd=folder)
    assert done.returncode == 2
    assert "in use" in done.stderr
    assert "--port" in done.stderr
    if sys.platform == "linux":
        assert "headrace.cli serve" in done.stderr


def test_tail_gives_every_record_as_json_and_later_ones_after_a_seq(url: str, folder: Path) -> None:
    headrace("run", "hello", cwd=folder, HEADRACE_URL=url)
    run = last_run(url, folder)
    lines = headrace("tail", run, cwd=folder, HEADRACE_URL=url).stdout.splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["seq"] for record in records] == list(range(1, len(records) + 1))
    assert (records[0]["type"], records[-1]["type"]) == ("run.started", "run.finished")
    assert {"run_id", "seq", "ts", "type", "data"} == set(records[0])
    later = headrace("tail", run, "--after", "3", cwd=folder, HEADRACE_URL=url).stdout.splitlines()
    assert later == lines[3:]


def test_replay_shows_the_answer_again(url: str, folder: Path) -> None:
    headrace("run", "hello", cwd=folder, HEADRACE_URL=url)
    done = headrace("replay", last_run(url, folder), "--speed", "0", cwd=folder, HEADRACE_URL=url)
    assert (done.returncode, done.stdout) == (0, "one two th\x1b[2Jree\n")


def test_cancel_waits_until_the_run_has_stopped(url: str, folder: Path) -> None:
    with subprocess.Popen(
        [*HEADRACE, "run", "wait", "--url", url], cwd=folder, env=environment(), stdout=subprocess.PIPE
    ) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.read(4) == b"one "
        run = last_run(url, folder)
        assert headrace("cancel", run, cwd=folder, HEADRACE_URL=url).stdout == f"{run} is cancelled.\n"
        assert headrace("cancel", run, cwd=folder, HEADRACE_URL=url).stdout == f"{run} was already cancelled.\n"
        assert waiting.wait(20) == 1


def test_ctrl_c_cancels_the_run_on_the_server_and_is_exit_code_130(url: str, folder: Path) -> None:
    with subprocess.Popen(
        [*HEADRACE, "run", "wait", "--url", url], cwd=folder, env=environment(), stdout=subprocess.PIPE
    ) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.read(4) == b"one "
        waiting.send_signal(signal.SIGINT)
        assert waiting.wait(20) == 130
    listed = headrace("runs", "--limit", "1", cwd=folder, HEADRACE_URL=url)
    assert "cancelled" in listed.stdout
    assert "talker: wait" in listed.stdout


def test_a_reader_that_goes_away_is_no_traceback(url: str, folder: Path) -> None:
    headrace("run", "hello", cwd=folder, HEADRACE_URL=url)
    run = last_run(url, folder)
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m headrace.cli tail {run} | head -n 1', sys.executable],
        cwd=folder,
        env=environment(HEADRACE_URL=url),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert json.loads(done.stdout)["seq"] == 1
    assert done.stderr == ""


def on_a_terminal(arguments: list[str], cwd: Path) -> str:
    """Everything that a command writes to a terminal of its own."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*HEADRACE, *arguments], cwd=cwd, env=environment(TERM="xterm"), stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        written = b""
        while select.select([ours], [], [], 30)[0]:
            try:
                data = os.read(ours, 65536)
            except OSError:
                break  # Linux reports the end of a terminal's output as EIO
            if not data:
                break
            written += data
        os.close(ours)
        assert process.wait(20) == 0
    return written.decode()


def test_on_a_terminal_there_are_sources_and_a_summary_and_no_foreign_escapes(url: str, folder: Path) -> None:
    shown = on_a_terminal(["run", "hello", "--url", url], folder)
    assert "one two th\ufffd[2Jree" in shown
    assert "[1] The Title  docs/page.md" in shown
    assert "first token" in shown
    assert "run 0" in shown
    assert "\x1b[r" in shown


def test_config_prints_every_value_with_its_source_and_masks_secrets(folder: Path) -> None:
    done = headrace("config", "--port", "9", cwd=folder, OPENAI_API_KEY="sk-secret")
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert rows["server.port"] == ["9", "--port"]
    assert rows["engine.api_key"] == ["***", "OPENAI_API_KEY"]
    assert rows["log.durability"] == ['"journal"', "default"]
    assert "sk-secret" not in done.stdout


def test_help_and_version_import_nothing_heavy(folder: Path) -> None:
    check = "import sys; from headrace.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    check += "print([m for m in ('msgspec', 'aiohttp', 'uvicorn', 'uvloop', 'asyncio', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "replay" in done.stdout
    assert headrace("--version", cwd=folder).stdout.startswith("headrace ")
