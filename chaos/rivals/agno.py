"""Agno AgentOS as a system under test: Postgres, Redis, instances behind the nginx that Headrace has.

The client is the one that Agno's documentation shows: it keeps each event's `event_index` and, when its connection
breaks, asks `/resume` for what comes after the last one. A run that starts again after a crash shows a second
`RunStarted`. Nothing says that this makes void what came before; our client is lenient and takes it so.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp

from bench.rivals import ROOT, environment_of, package_versions
from chaos import ledger
from chaos.event_source import LATER, Refused, ServerSent, read
from chaos.front import front
from chaos.plan import RunPlan
from chaos.process import Process, environment, free_port
from chaos.rivals.model import model
from chaos.rivals.stores import Postgres, missing, redis
from chaos.system import Final, Seen
from chaos.verdict import said

_PACKAGES = ("agno[os]", "openai", "psycopg[binary]", "redis", "sqlalchemy", "uvloop", "httptools")
_IMPORTS = "agno.os, agno.db.postgres, multipart, openai, psycopg, redis, uvloop, httptools"
_TERMINALS = frozenset({"RunCompleted", "RunError", "RunCancelled"})
_STATUSES = {"COMPLETED": "completed", "ERROR": "failed", "CANCELLED": "cancelled"}
_AGENT = "/agents/chaos/runs"
_PATIENCE_S = 60.0
_RETRY_S = 1.0
_SILENT_S = 40.0
"""An idle stream has a heartbeat every 30 seconds."""
_READING = aiohttp.ClientTimeout(total=10.0)
_STREAMING = aiohttp.ClientTimeout(total=None, sock_connect=_SILENT_S, sock_read=_SILENT_S)


def make() -> "Agno | None":
    """None, with the reason on stderr, where it cannot be installed."""
    if lacking := missing():
        print(f"agno is left out: {lacking}", file=sys.stderr)
        return None
    python = environment_of("agno", _PACKAGES, _IMPORTS)
    return Agno(python) if python else None


class Agno:
    kinds: Sequence[str] = ("resume",)

    def __init__(self, python: Path) -> None:
        self.name = f"agno {package_versions(python, ('agno',))['agno']}"
        self.url = ""
        self.processes: list[Process] = []
        self._model: Process | None = None
        self._postgres: Postgres | None = None
        self._python = python
        self._inside = ""
        self._sessions: dict[str, str] = {}  # run_id → the session that the client opened for it
        self._settled: dict[str, float] = {}  # call → when a client was first shown its result
        self._http: aiohttp.ClientSession | None = None

    async def start(self, instances: int, folder: Path) -> None:
        """Raises NotReady."""
        self._model = speaker = model(folder)
        self._postgres = database = Postgres(folder)
        coordination = redis(folder)
        ports = [free_port() for _ in range(instances)]
        addresses = (
            *("--database", database.url),
            *("--redis", f"redis://127.0.0.1:{coordination.port}"),
            *("--model", f"http://127.0.0.1:{speaker.port}/v1"),
        )
        servers = [self._instance(number, port, addresses, folder) for number, port in enumerate(ports, 1)]
        self.processes += [database.process, coordination, *servers, front(ports, folder)]
        for process in (speaker, *self.processes):
            await process.start()
        self.url = self._inside = f"http://127.0.0.1:{self.processes[-1].port}"

    async def stop(self) -> None:
        if self._http is not None:
            await self._http.close()
        for process in reversed(self.processes):
            await process.kill()
        if self._model is not None:
            await self._model.kill()
        if self._postgres is not None:
            self._postgres.clear()

    async def begin(self, client: int, plan: RunPlan) -> str:
        """The first event names the run. Asked again with the same key, Agno's queue leads to the run it has."""
        form = {"message": plan.question, "session_id": plan.name, "stream": "true", "background": "true"}
        while True:
            try:
                async with aclosing(self._ask(_AGENT, form, key=plan.name)) as events:
                    async for event in events:
                        run_id = json.loads(event.data).get("run_id")
                        if run_id:
                            self._sessions[run_id] = plan.name
                            return str(run_id)
            except (aiohttp.ClientError, OSError, TimeoutError):
                pass  # whether it began is not known: the key makes asking again safe
            await asyncio.sleep(_RETRY_S)

    async def follow(self, run_id: str, kind: str) -> AsyncGenerator[Seen, None]:
        """Raises Refused when nothing has come for a minute."""
        form = {"session_id": self._sessions[run_id]}
        heard = time.monotonic()
        while time.monotonic() - heard < _PATIENCE_S:
            more = False
            try:
                async with aclosing(self._ask(f"{_AGENT}/{run_id}/resume", form)) as events:
                    async for event in events:
                        seen = record(event, at=time.time())
                        if seen is None:
                            more |= event.event == "error"  # the stream broke: it may have more
                            continue
                        more, heard = True, time.monotonic()
                        form["last_event_index"] = str(seen.seq)
                        self._settle(seen)
                        yield seen
                        if seen.terminal:
                            return
                if not more and await self._status(run_id):
                    return  # it is over, and the stream has nothing to show
            except (aiohttp.ClientError, OSError, TimeoutError):
                pass
            await asyncio.sleep(_RETRY_S)
        raise Refused(f"nothing for {_PATIENCE_S:.0f} s after event {form.get('last_event_index', 'none')}")

    async def final(self, run_id: str) -> Final:
        """Read past the cutter. Raises aiohttp.ClientError, TimeoutError: ask again."""
        form = {"session_id": self._sessions[run_id]}
        run = await self._run(run_id, self._inside)
        records = []
        status = _STATUSES.get(run["status"], "")
        if status:
            async with aclosing(self._ask(f"{_AGENT}/{run_id}/resume", form, url=self._inside)) as events:
                records = [seen async for event in events if (seen := record(event)) is not None]
        return Final(
            status=status,
            # of a run that failed, its content is the reason
            text=(run.get("content") or "") if status == "completed" else said(records),
            terminals=sum(seen.terminal for seen in records),
            records=records,
            dense=False,  # Agno promises numbers that grow, not that none is left out
            settled=self._settled,
        )

    async def _ask(
        self, path: str, form: Mapping[str, str], *, key: str = "", url: str = ""
    ) -> AsyncGenerator[ServerSent, None]:
        """One answer's events. Raises aiohttp.ClientError, TimeoutError when the connection breaks, Refused."""
        headers = {"Accept": "text/event-stream"} | ({"Idempotency-Key": key} if key else {})
        address = (url or self.url) + path
        async with self._users().post(address, data=dict(form), headers=headers, timeout=_STREAMING) as answer:
            await _check(answer)
            async for event in read(answer.content):
                if event.data:
                    yield event

    async def _status(self, run_id: str) -> str:
        """How the run has ended; "" while it has not."""
        return _STATUSES.get((await self._run(run_id, self.url))["status"], "")

    async def _run(self, run_id: str, url: str) -> dict[str, Any]:
        query = {"session_id": self._sessions[run_id]}
        async with self._users().get(f"{url}{_AGENT}/{run_id}", params=query, timeout=_READING) as answer:
            await _check(answer)
            run: dict[str, Any] = await answer.json()
            return run

    def _settle(self, seen: Seen) -> None:
        if seen.kind == "ToolCallCompleted":
            label = json.loads(seen.data)["tool"]["tool_args"]["label"]
            self._settled.setdefault(label, seen.at)

    def _users(self) -> aiohttp.ClientSession:
        if self._http is None:
            self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return self._http

    def _instance(self, number: int, port: int, addresses: Sequence[str], folder: Path) -> Process:
        command = [str(self._python), "-m", "chaos.rivals.agno_server", "--port", str(port), *addresses]
        env = environment() | {
            "PYTHONPATH": str(ROOT),
            "AGNO_TELEMETRY": "false",
            ledger.VARIABLE: str(folder / "ledger"),
        }
        return Process(f"instance-{number}", "instance", command, port=port, folder=folder, env=env)


async def _check(answer: aiohttp.ClientResponse) -> None:
    """Raises aiohttp.ClientError where a client would come back, else Refused."""
    if answer.status in LATER or answer.status == 500:
        raise aiohttp.ClientPayloadError(f"status {answer.status}")
    if answer.status >= 300:
        raise Refused(f"{answer.status}: {(await answer.text())[:300]}")


def record(event: ServerSent, at: float = 0.0) -> Seen | None:
    """None for what the resume route says about itself, which has no index."""
    data = json.loads(event.data)
    if data.get("event_index") is None:
        return None
    kind, text = event.event, ""
    if kind == "RunContent":
        kind, text = "text.delta", data.get("content") or ""
    elif kind in ("RunStarted", "RunCompleted"):
        kind, text = "text.replaced", data.get("content") or ""
    return Seen(
        seq=data["event_index"],
        kind=kind,
        at=at,
        text=text,
        terminal=event.event in _TERMINALS,
        worker=worker(data.get("model")),
        data=event.data,
    )


def worker(model_name: str | None) -> int:
    """The process that a model is named for, 0 if it is named for none."""
    name, _, pid = (model_name or "").rpartition("-")
    return int(pid) if name == "scripted" else 0
