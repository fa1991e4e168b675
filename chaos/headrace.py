"""Headrace as a system under test: a store, instances behind nginx, and its own clients."""

import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Literal

import aiohttp
import msgspec

from chaos import ledger
from chaos.clients import KINDS, Clients, as_made
from chaos.event_source import ServerSent, read
from chaos.front import front
from chaos.plan import RunPlan
from chaos.process import Process, environment, free_port
from chaos.system import Final, Seen
from headrace.events import TERMINAL_TYPES
from headrace.state import RunState

Store = Literal["redis", "embedded"]

ROOT = Path(__file__).resolve().parent.parent
_SETTINGS = {
    "HEADRACE_RUN__MAX_CRASHES": "1000000",  # kills are not the run's fault
    "HEADRACE_SERVER__HEARTBEAT": "1",  # a frozen instance is noticed after 2.5 of them
    "HEADRACE_SERVER__DRAIN_GRACE": "1",  # most runs are longer, so that leaving hands them over
}
_READING = aiohttp.ClientTimeout(total=10.0)


class _Shown(msgspec.Struct):
    state: RunState


class Headrace:
    """`embedded`: one instance, its journal on disk. `redis`: any number, one Redis with AOF and fsync `always`."""

    kinds: Sequence[str] = KINDS

    def __init__(self, store: Store) -> None:
        self.name = f"headrace ({store})"
        self.url = ""
        self.processes: list[Process] = []
        self._store = store
        self._inside = ""
        self._clients: Clients | None = None

    async def start(self, instances: int, folder: Path) -> None:
        if self._store == "embedded" and instances != 1:
            raise ValueError("the embedded store belongs to one instance")
        settings = {ledger.VARIABLE: str(folder / "ledger"), **_SETTINGS, **self._log(folder)}
        ports = [free_port() for _ in range(instances)]
        self.processes += [_instance(at, port, folder, settings) for at, port in enumerate(ports, 1)]
        self.processes.append(front(ports, folder))
        for process in self.processes:
            await process.start()
        self.url = self._inside = f"http://127.0.0.1:{self.processes[-1].port}"

    async def stop(self) -> None:
        if self._clients is not None:
            await self._clients.__aexit__(None, None, None)
        for process in reversed(self.processes):
            await process.kill()

    async def begin(self, client: int, plan: RunPlan) -> str:
        return await (await self._users()).begin(client, plan)

    async def follow(self, run_id: str, kind: str) -> AsyncIterator[Seen]:
        async for seen in (await self._users()).follow(run_id, kind):
            yield seen

    async def final(self, run_id: str) -> Final:
        """Read past the cutter. Raises aiohttp.ClientError where the answer was cut: ask again."""
        run = f"{self._inside}/v1/runs/{run_id}"
        async with aiohttp.ClientSession(timeout=_READING, raise_for_status=True) as http:
            async with http.get(run) as answer:
                state = msgspec.json.decode(await answer.read(), type=_Shown).state
            if not state.ended:
                return Final(status="", text=state.text, terminals=0)
            async with http.get(f"{run}/events?chunk=token") as answer:
                events = [event async for event in read(answer.content)]
        return _final(run_id, state, events)

    async def _users(self) -> Clients:
        """Opened at first use: by then the harness has put itself between them and the system."""
        if self._clients is None:
            self._clients = Clients(self.url)
            await self._clients.__aenter__()
        return self._clients

    def _log(self, folder: Path) -> dict[str, str]:
        if self._store == "embedded":
            return {"HEADRACE_LOG__PATH": str(folder / "store")}
        redis = _redis(folder)
        self.processes.append(redis)
        return {"HEADRACE_LOG__URL": f"redis://127.0.0.1:{redis.port}/0"}


def _final(run_id: str, state: RunState, events: Sequence[ServerSent]) -> Final:
    if not events or events[-1].event not in TERMINAL_TYPES:
        raise aiohttp.ClientPayloadError(f"what there is of run {run_id} does not end")
    records = [as_made(run_id, event) for event in events]
    results = [msgspec.json.decode(event.data) for event in events if event.event == "tool.result"]
    return Final(
        status=state.status,
        reason=f"{state.error.code}: {state.error.message}" if state.error else "",
        text=state.text,
        output=state.output,
        terminals=sum(record.terminal for record in records),
        records=records,
        settled={result["call_id"]: result["ts"] / 1000 for result in results},
    )


def _instance(number: int, port: int, folder: Path, settings: dict[str, str]) -> Process:
    command = [sys.executable, "-m", "headrace.cli", "serve", "chaos.app:app", "--port", str(port)]
    env = environment() | settings | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    return Process(f"instance-{number}", "instance", command, port=port, folder=folder, env=env)


def _redis(folder: Path) -> Process:
    """As durable as Redis gets: what it has answered is on the disk."""
    port = free_port()
    data = folder / "redis"
    data.mkdir()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(data)]
    command += ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
    return Process("redis", "store", command, port=port, folder=folder, env=environment())
