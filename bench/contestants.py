"""Who is measured, how each is started and asked. What differs between them stands here and nowhere else."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote_plus

import msgspec

from bench.model import Plan
from bench.process import READY_S, all_cores, environment, free_port, running, scratch, server_core
from bench.rivals import agno_python

SSE = "text/event-stream"


class Contestant(msgspec.Struct, frozen=True, kw_only=True):
    """`settings` are environment variables. `resumes` says whether a run can be read again. It comes up within
    `ready_s` seconds. With `all_cores` it has them all, as a server with a model in it must; the client shares them."""

    name: str
    command: tuple[str, ...]
    settings: dict[str, str] = msgspec.field(default_factory=dict)
    resumes: bool = False
    dialect: str = "headrace"
    ready_s: float = READY_S
    all_cores: bool = False

    def start_request(self, plan: Plan) -> str:
        """Raw HTTP that starts a run and streams it."""
        if self.dialect == "agno":
            body = f"message={quote_plus(str(plan))}&stream=true&background=true"
            return post("/agents/bench/runs", body, "application/x-www-form-urlencoded")
        return post(
            "/v1/runs", msgspec.json.encode({"agent": "bench", "input": str(plan)}).decode(), "application/json"
        )

    def resume_request(self, run_id: str, after: int) -> str:
        """Raw HTTP for everything after `after` (headrace: a seq; agno: an index, -1 for all)."""
        if self.dialect == "agno":
            body = f"last_event_index={after - 1}" if after else ""
            return post(f"/agents/bench/runs/{run_id}/resume", body, "application/x-www-form-urlencoded")
        return f"GET /v1/runs/{run_id}/events?after={after} HTTP/1.1\r\nHost: bench\r\nAccept: {SSE}\r\n\r\n"


def post(path: str, body: str, content_type: str) -> str:
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nAccept: {SSE}\r\nContent-Type: {content_type}\r\n"
    return f"{head}Content-Length: {len(body.encode())}\r\n\r\n{body}"


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    contestant: Contestant
    port: int
    pid: int
    folder: Path


@contextmanager
def serving(contestant: Contestant) -> Iterator[Serving]:
    """A fresh process with an empty store. Raises ServerFailed."""
    port = free_port()
    with scratch() as folder:
        places = {"PORT": str(port), "DATA": str(folder)}
        command = [word.format(**places) for word in contestant.command]
        settings = {name: value.format(**places) for name, value in contestant.settings.items()}
        cores = all_cores() if contestant.all_cores else server_core()
        log, env = folder / "server.log", environment() | settings
        with running(command, port, log, env, cores=cores, within=contestant.ready_s) as pid:
            yield Serving(contestant=contestant, port=port, pid=pid, folder=folder)


def _module(name: str, *flags: str, python: str = sys.executable) -> tuple[str, ...]:
    return (python, "-m", f"bench.servers.{name}", "--port", "{PORT}", "--data", "{DATA}", *flags)


def headrace(durability: str = "journal") -> Contestant:
    """All defaults but the number of runs at a time (256 by default) and the run's deadline."""
    return Contestant(
        name="headrace" if durability == "journal" else f"headrace-{durability}",
        command=(sys.executable, str(Path(sys.executable).with_name("headrace")), "serve", "bench.app:app"),
        settings={
            "HEADRACE_SERVER__PORT": "{PORT}",
            "HEADRACE_LOG__PATH": "{DATA}/store",
            "HEADRACE_LOG__DURABILITY": durability,
            "HEADRACE_RUN__MAX_ACTIVE": "100000",
            "HEADRACE_RUN__DEADLINE": "none",
        },
        resumes=True,
    )


def headrace_redis() -> Contestant:
    """`bench.instances` gives it the Redis."""
    return msgspec.structs.replace(headrace(), name="headrace-redis")


MODEL = Contestant(name="model", command=_module("floor", "--discard"))
FLOOR = Contestant(name="floor", command=_module("floor"))
NAIVE = Contestant(name="naive", command=_module("naive"))


def agno() -> Contestant | None:
    """None where it cannot be installed. Its limit of 32 runs at a time is lifted, as Headrace's is."""
    python = agno_python()
    if python is None:
        return None
    return Contestant(
        name="agno",
        command=_module("agno_os", python=str(python)),
        settings={"AGNO_BACKGROUND_MAX_CONCURRENCY": "0"},
        resumes=True,
        dialect="agno",
    )


def contestants(names: list[str]) -> list[Contestant]:
    ours = (headrace(), headrace("memory"), headrace("fsync"), headrace_redis())
    known = {c.name: c for c in (MODEL, FLOOR, NAIVE, *ours)}
    found = [agno() if name == "agno" else known[name] for name in names]
    return [contestant for contestant in found if contestant is not None]


NAMES = ("model", "floor", "naive", "headrace", "headrace-memory", "headrace-fsync", "headrace-redis", "agno")
