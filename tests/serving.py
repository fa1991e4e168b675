"""A real server on a free port, agents whose every step a test decides, and SSE read by hand."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from headrace.agent.app import App
from headrace.agent.port import AgentPort, RunContext
from headrace.config import AuthConfig, Config, LimitsConfig, LogConfig, RunConfig, ServerConfig
from headrace.events import RunFinished, TextDelta, TurnFinished, TurnStarted
from headrace.server import Server

Body = Callable[[RunContext], Awaitable[RunFinished]]


class FunctionAgent:
    """An agent whose run is a function of the test."""

    description = "for tests"
    needs_engine = False
    commits_first = False

    def __init__(self, body: Body, name: str = "agent", *, resumable: bool = False) -> None:
        self.name = name
        self.resumable = resumable
        self._body = body

    async def run(self, context: RunContext) -> RunFinished:
        return await self._body(context)


async def count(context: RunContext) -> RunFinished:
    """Says as many words as the question asks for."""
    words = [f"w{i} " for i in range(int(context.question))]
    context.emit(TurnStarted(turn=1, model="m", engine="test"))
    for number, word in enumerate(words):
        context.emit(TextDelta(text=word))
        if number % 10 == 9:
            await asyncio.sleep(0)
    context.emit(TurnFinished(turn=1, finish_reason="stop"))
    return RunFinished(status="completed", output="".join(words))


class Gate:
    """An agent that says a word, waits for the test, says another, and ends."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.open = asyncio.Event()
        self.cancelled = False

    async def __call__(self, context: RunContext) -> RunFinished:
        context.emit(TextDelta(text="before "))
        self.entered.set()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        context.emit(TextDelta(text="after"))
        return RunFinished(status="completed", output="before after")


def config(path: Path | None = None, *, auth: AuthConfig | None = None, **sections: dict[str, Any]) -> Config:
    """A test's configuration: memory, or the journal in `path`; a free port; a short heartbeat."""
    log = LogConfig(durability="memory") if path is None else LogConfig(durability="journal", path=str(path))
    return Config(
        server=ServerConfig(**{"port": 0, "heartbeat": 0.2, "drain_grace": 1.0, **sections.get("server", {})}),
        log=log,
        run=RunConfig(**sections.get("run", {})),
        limits=LimitsConfig(**sections.get("limits", {})),
        auth=auth or AuthConfig(),
    )


class Caller:
    """A server and an HTTP session that talks to it."""

    def __init__(self, server: Server, http: aiohttp.ClientSession) -> None:
        self.server = server
        self.http = http

    async def post(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else msgspec.json.encode(body if body is not None else {})
        async with self.http.post(self.server.url + path, data=data, headers=named(headers)) as answer:
            return answer.status, msgspec.json.decode(await answer.read())

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        async with self.http.get(self.server.url + path, headers=named(headers)) as answer:
            raw = await answer.read()
            return answer.status, msgspec.json.decode(raw) if raw else None

    async def start(self, question: str, **more: Any) -> str:
        status, run = await self.post("/v1/runs", {"input": question, **more})
        assert status == 202, run
        run_id = run["run_id"]
        assert isinstance(run_id, str)
        return run_id

    async def finished(self, question: str, **more: Any) -> dict[str, Any]:
        status, run = await self.post("/v1/runs", {"input": question, **more}, prefer="wait=20")
        assert status == 200, run
        state = run["state"]
        assert isinstance(state, dict)
        return state

    @asynccontextmanager
    async def stream(self, path: str, **headers: str) -> AsyncIterator[aiohttp.ClientResponse]:
        async with self.http.get(self.server.url + path, headers=named(headers)) as answer:
            assert answer.status == 200, await answer.text()
            yield answer

    async def events(self, path: str, **headers: str) -> list[dict[str, Any]]:
        """Everything until the server closes: {id, event, …data}."""
        async with self.stream(path, **headers) as answer:
            return parse(await answer.read())


def named(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def parse(raw: bytes) -> list[dict[str, Any]]:
    """The events of an SSE body, read as strictly as our own server writes them."""
    found = []
    for block in raw.split(b"\n\n"):
        fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if line and not line.startswith(b":"))
        if b"event" in fields:
            data = msgspec.json.decode(fields[b"data"])
            found.append({"id": int(fields[b"id"]), "event": fields[b"event"].decode(), **data})
    return found


async def read_until(answer: aiohttp.ClientResponse, marker: bytes) -> bytes:
    """Read a stream up to and including `marker`."""
    raw = b""
    while marker not in raw:
        piece = await answer.content.readany()
        assert piece, f"the stream ended without {marker!r}: {raw!r}"
        raw += piece
    return raw


@asynccontextmanager
async def running(*agents: AgentPort, settings: Config | None = None) -> AsyncIterator[Caller]:
    async with Server(App(*agents), settings or config()) as server, aiohttp.ClientSession() as http:
        yield Caller(server, http)
