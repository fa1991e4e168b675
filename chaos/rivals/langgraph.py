"""LangGraph's server as a system under test: `langgraph dev`, its checkpoints in SQLite, its own Python client.

The server that LangGraph sells for production (Postgres and Redis) needs Docker and a licence key; this one is what
anybody can install. It is one process, and says of itself that it is for development. The row must say so.
"""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from bench.rivals import ROOT, environment_of, package_versions
from chaos import ledger
from chaos.plan import RunPlan
from chaos.process import Process, environment, free_port
from chaos.rivals.model import model
from chaos.system import Final, Seen

_PACKAGES = ("langgraph-cli[inmem]", "langchain", "langchain-openai", "langgraph-checkpoint-sqlite")
_IMPORTS = "langgraph_api, langgraph_sdk, langchain.agents, langchain_openai, langgraph.checkpoint.sqlite.aio"
_CONFIGURATION = {
    "dependencies": ["."],
    "graphs": {"chaos": "chaos.rivals.langgraph_app:agent"},
    "checkpointer": {"path": f"{Path(__file__).with_name('langgraph_saver.py')}:saver"},
}
_UNFINISHED = frozenset({"pending", "running"})
_LONGEST_LINE = 1 << 24


class ClientError(RuntimeError):
    """What LangGraph's client has raised."""


def make() -> "LangGraph | None":
    """None, with the reason on stderr, where it cannot be installed."""
    python = environment_of("langgraph", _PACKAGES, _IMPORTS)
    return LangGraph(python) if python else None


class LangGraph:
    kinds: Sequence[str] = ("join",)

    def __init__(self, python: Path) -> None:
        self.name = f"langgraph dev {package_versions(python, ('langgraph-api',))['langgraph-api']}"
        self.url = ""
        self.processes: list[Process] = []
        self._model: Process | None = None
        self._python = python
        self._inside = ""
        self._threads: dict[str, str] = {}  # run_id → its thread
        self._numbers: dict[str, Numbers] = {}
        self._settled: dict[str, float] = {}  # call → when a client was first shown its result
        self._client = Client(python)

    async def start(self, instances: int, folder: Path) -> None:
        """Raises NotReady, ValueError."""
        if instances != 1:
            raise ValueError("LangGraph's development server keeps its runs in memory: it is one instance")
        self._model = speaker = model(folder)
        self.processes.append(self._server(folder, speaker.port))
        for process in (speaker, *self.processes):
            await process.start()
        self.url = self._inside = f"http://127.0.0.1:{self.processes[0].port}"
        await self._client.start(folder)

    async def stop(self) -> None:
        await self._client.stop()
        for process in self.processes:
            await process.kill()
        if self._model is not None:
            await self._model.kill()

    async def begin(self, client: int, plan: RunPlan) -> str:
        thread = str(uuid.uuid5(uuid.NAMESPACE_URL, plan.name))
        run_id = str(await self._client.ask(do="begin", url=self.url, thread=thread, question=plan.question))
        self._threads[run_id] = thread
        self._numbers[run_id] = Numbers()
        return run_id

    async def follow(self, run_id: str, kind: str) -> AsyncGenerator[Seen, None]:
        """Raises ClientError."""
        async for seen in self._parts("follow", run_id, self.url):
            if (label := settled(seen)) is not None:
                self._settled.setdefault(label, seen.at)
            yield seen

    async def final(self, run_id: str) -> Final:
        """Read past the cutter. Raises ClientError, also when the server does not know the run (any more)."""
        run = await self._client.ask(do="final", url=self._inside, thread=self._threads[run_id], run=run_id)
        status = "" if run["status"] in _UNFINISHED else {"success": "completed"}.get(run["status"], run["status"])
        records = [seen async for seen in self._parts("read", run_id, self._inside)] if status else []
        said = [message for message in run["messages"] if message["type"] == "ai"]
        return Final(
            status=status,
            text=text_of(run["messages"]),
            output=said[-1]["content"] if said else None,
            terminals=1 if status else 0,
            records=records,
            dense=False,  # its ids are times
            settled=self._settled,
        )

    async def _parts(self, do: str, run_id: str, url: str) -> AsyncGenerator[Seen, None]:
        numbers = self._numbers[run_id]
        parts = self._client.parts(do=do, url=url, thread=self._threads[run_id], run=run_id)
        try:
            async for part in parts:
                yield record(part, numbers, at=time.time() if do == "follow" else 0.0)
        finally:
            await parts.aclose()

    def _server(self, folder: Path, model_port: int) -> Process:
        port = free_port()
        (folder / "langgraph.json").write_text(json.dumps(_CONFIGURATION))
        program = str(self._python.with_name("langgraph"))
        flags = ("--no-reload", "--no-browser", "--port", str(port), "--n-jobs-per-worker", "1000")
        env = environment() | {
            "PYTHONPATH": str(ROOT),
            "CHAOS_MODEL": f"http://127.0.0.1:{model_port}/v1",
            "BG_JOB_MAX_RETRIES": "1000",
            "LANGSMITH_TRACING": "false",
            "LANGGRAPH_CLI_NO_ANALYTICS": "1",
            ledger.VARIABLE: str(folder / "ledger"),
        }
        return Process("instance-1", "instance", [program, "dev", *flags], port=port, folder=folder, env=env)


class Client:
    """The process that LangGraph's client lives in; `langgraph_client.py` says how one talks to it."""

    def __init__(self, python: Path) -> None:
        self._python = python
        self._process: asyncio.subprocess.Process | None = None
        self._ids = count(1)
        self._answers: dict[int, asyncio.Queue[dict[str, Any]]] = {}

    async def start(self, folder: Path) -> None:
        with (folder / "client.log").open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *(str(self._python), "-m", "chaos.rivals.langgraph_client"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                cwd=folder,
                env=environment() | {"PYTHONPATH": str(ROOT)},
                limit=_LONGEST_LINE,
            )
        assert self._process.stdout is not None
        self._reading = asyncio.create_task(self._read(self._process.stdout))

    async def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            await self._process.wait()
            await self._reading

    async def ask(self, **order: str) -> Any:
        """What an order without parts comes to. Raises ClientError."""
        number, answers = self._give(order)
        try:
            return result_of(await answers.get())
        finally:
            self._leave(number)

    async def parts(self, **order: str) -> AsyncGenerator[dict[str, Any], None]:
        """Raises ClientError."""
        number, answers = self._give(order)
        try:
            while "part" in (answer := await answers.get()):
                yield answer["part"]
            result_of(answer)
        finally:
            self._leave(number)

    def _give(self, order: Mapping[str, str]) -> tuple[int, asyncio.Queue[dict[str, Any]]]:
        number = next(self._ids)
        answers = self._answers[number] = asyncio.Queue()
        self._send({"id": number, **order})
        return number, answers

    def _leave(self, number: int) -> None:
        del self._answers[number]
        self._send({"id": number, "do": "leave"})

    def _send(self, order: Mapping[str, object]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")

    async def _read(self, lines: asyncio.StreamReader) -> None:
        while line := await lines.readline():
            answer = json.loads(line)
            if answers := self._answers.get(answer["id"]):
                answers.put_nowait(answer)


def result_of(answer: Mapping[str, Any]) -> Any:
    if "error" in answer:
        raise ClientError(answer["error"])
    return answer["result"]


class Numbers:
    """Numbers for records whose ids are times in milliseconds and collide: records of one millisecond are told apart by
    what they say, in the order in which somebody first saw them."""

    def __init__(self) -> None:
        self._within: dict[int, list[bytes]] = {}

    def number(self, part_id: str, data: bytes) -> int:
        milliseconds, _, sub = part_id.partition("-")
        time_of = int(milliseconds) * 100 + int(sub or 0)
        seen = self._within.setdefault(time_of, [])
        if data not in seen:
            seen.append(data)
        return time_of * 100 + seen.index(data)


def record(part: Mapping[str, Any], numbers: Numbers, at: float = 0.0) -> Seen:
    data = part["data"]
    encoded = json.dumps(data, ensure_ascii=False, sort_keys=True).encode()
    kind, text, worker = part["event"], "", 0
    if kind == "values":
        kind, text = "text.replaced", text_of(data.get("messages", ()))
    elif kind == "messages" and data[0]["type"] == "AIMessageChunk":
        kind, text = "text.delta", data[0]["content"]
        worker = int(data[1]["ls_model_name"].rpartition("-")[2])
    seq = numbers.number(part["id"], encoded)
    return Seen(seq=seq, kind=kind, at=at, text=text, terminal=kind == "error", worker=worker, data=encoded)


def text_of(messages: Sequence[Mapping[str, Any]]) -> str:
    return "".join(message["content"] for message in messages if message["type"] == "ai")


def settled(seen: Seen) -> str | None:
    """The call whose result this is; calls are named by their labels."""
    if seen.kind != "messages":
        return None
    message = json.loads(seen.data)[0]
    return message["tool_call_id"] if message["type"] == "tool" else None
