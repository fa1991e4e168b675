"""`headrace replicas` against a server whose two replicas are scripted."""

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from headrace.cli import main
from headrace.client.http import Answer, Http

HEADRACE = [sys.executable, "-m", "headrace.cli"]

APP = """
from headrace.agent.app import App
from headrace.agent.loop import Agent
from headrace.engine.pool.pool import EnginePool
from headrace.engine.port import Text
from headrace.engine.scripted import Hang, ScriptedEngine

def script(request):
    return [Text("Well, ")] if request.max_tokens == 1 else [Text("Well, "), Hang()]

pool = EnginePool({name: ScriptedEngine(script, model="m") for name in ("gpu1", "gpu2")}, limit=1)
app = App(Agent("talker", "Be brief."), engine=pool)
"""


def environment(**extra: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HEADRACE_", "OPENAI_"))}
    return {**kept, "PYTHONUNBUFFERED": "1", **extra}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str, None, None]:
    folder = tmp_path_factory.mktemp("replicas")
    (folder / "my_app.py").write_text(APP)
    keys = {
        "HEADRACE_AUTH__KEYS": "ann=a,bob=b",
        "HEADRACE_AUTH__OPERATORS": "ann",
        "HEADRACE_SERVER__DRAIN_GRACE": "0",
    }
    command = [*HEADRACE, "serve", "my_app:app", "--port", "0", "--durability", "memory"]
    with subprocess.Popen(command, cwd=folder, env=environment(**keys), stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().split()[-1]
        server.terminate()
        assert server.wait(20) == 0


def replicas(url: str, *arguments: str, key: str = "a") -> subprocess.CompletedProcess[str]:
    command = [*HEADRACE, "replicas", *arguments, "--url", url, "--api-key", key]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)


def listed(url: str) -> list[dict[str, object]]:
    return [json.loads(row) for row in replicas(url, "--json").stdout.splitlines()]


def test_a_long_wait_is_asked_for_in_parts_until_it_is_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"name": "gpu1", "model": "m", "state": "closed", "active": 1, "size": 1, "draining": True, "waiting": 0}
    waits: list[str] = []

    class Patient(Http):
        """Drained at the third time."""

        async def request(self, method: str, path: str, **more: Any) -> Answer:
            assert (method, path, more["body"]) == ("POST", "/v1/replicas/drain", {"replica": "gpu1"})
            waits.append(more["query"]["wait"])
            return Answer(200 if len(waits) == 3 else 202, {}, json.dumps({"replicas": [row]}).encode())

    monkeypatch.setattr("headrace.cli.replicas.Http", Patient)
    assert main(["replicas", "drain", "gpu1", "--wait", "50"]) == 0
    assert (waits, capsys.readouterr().out) == (["20", "20", "20"], "gpu1  m  draining   1 of 1\n")


@contextmanager
def asking(url: str) -> Generator[None, None, None]:
    """A run that has begun and does not end by itself."""
    command = [*HEADRACE, "run", "hello", "--url", url, "--api-key", "b"]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stdout.read(4) == b"Well"
        try:
            yield
        finally:
            run.send_signal(2)
            run.wait(20)


def test_it_lists_drains_and_resumes_and_says_by_its_exit_code_whether_that_is_done(url: str) -> None:
    done = replicas(url)
    assert (done.returncode, done.stdout) == (0, "gpu1  m  closed     0 of 1\ngpu2  m  closed     0 of 1\n")
    with asking(url):
        busy = next(row["name"] for row in listed(url) if row["active"])
        idle = next(row["name"] for row in listed(url) if not row["active"])
        assert isinstance(busy, str)
        begun = replicas(url, "drain", busy)
        assert (begun.returncode, begun.stdout) == (0, f"{busy}  m  draining   1 of 1\n")
        assert replicas(url, "drain", busy, "--wait", "1").returncode == 1
    done = replicas(url, "drain", busy, "--wait", "30")
    assert (done.returncode, done.stdout) == (0, f"{busy}  m  drained    0 of 1\n")
    back = replicas(url, "resume", busy)
    assert (back.returncode, back.stdout) == (0, f"{busy}  m  warming    0 of 1\n")
    assert [row["draining"] for row in listed(url)] == [False, False]
    assert isinstance(idle, str)
    assert replicas(url, "drain", idle).returncode == 0
    last = replicas(url, "drain", busy)
    assert (last.returncode, "last replica" in last.stderr, "force" in last.stderr) == (2, True, True)
    assert replicas(url, "drain", busy, "--force").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "key", "said"),
    [
        ([], "b", "auth.operators"),
        (["drain", "gpu3"], "a", "gpu1, gpu2"),
        (["drain"], "a", "needs a name"),
        (["drain", "gpu1", "--wait", "-1"], "a", "--wait"),
        (["drain", "gpu1", "--wait", "nan"], "a", "--wait"),
        (["resume", "gpu1", "--force"], "a", "force"),
        (["stop", "gpu1"], "a", "invalid choice"),
    ],
)
def test_what_it_cannot_do_is_exit_code_2_and_says_why(url: str, arguments: list[str], key: str, said: str) -> None:
    done = replicas(url, *arguments, key=key)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
