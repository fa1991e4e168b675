"""A real server in this loop with an agent whose words and pace the test chooses."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from headrace.agent.app import App
from headrace.agent.port import RunContext
from headrace.config import Config, LogConfig, ServerConfig
from headrace.engine.scripted import ScriptedEngine
from headrace.events import Event, InputRequested, Record, RunFinished, TextDelta, TurnFinished, TurnStarted
from headrace.server import Server


class Talker:
    """Emits `words` as one turn, a record per loop tick, once `gate` is open (it is, unless the test closes it)."""

    name = "talker"
    description = "Says what it was told to."
    resumable = False

    def __init__(self, words: Sequence[str] = ("Hello", " wörld", ' "\u2028"')) -> None:
        self.engine = ScriptedEngine("")
        self.words = words
        self.gate = asyncio.Event()
        self.gate.set()
        self.runs = 0

    async def run(self, context: RunContext) -> RunFinished:
        self.runs += 1
        await self.gate.wait()
        await self.emit(context, TurnStarted(turn=1, model="m", engine="talker"))
        if context.question == "ask me":
            answer = await context.ask(InputRequested(input_id="q", kind="question", prompt="Which?"))
            await self.emit(context, TextDelta(text=f"{answer}!"))
        for word in self.words:
            await self.emit(context, TextDelta(text=word))
        await self.emit(context, TurnFinished(turn=1, finish_reason="stop"))
        return RunFinished(status="completed", output="".join(self.words))

    async def emit(self, context: RunContext, event: Event) -> None:
        context.emit(event)
        await asyncio.sleep(0)


@asynccontextmanager
async def serving(*agents: Any, server: ServerConfig | None = None, **config: Any) -> AsyncGenerator[Server, None]:
    """A server on a free port with a log in memory."""
    chosen = Config(server=server or ServerConfig(port=0), log=LogConfig(durability="memory"), **config)
    async with Server(App(*agents), chosen) as running:
        yield running


async def logged(server: Server, run_id: str) -> list[Record]:
    """What the log holds of a run."""
    return list(await server.log.read(run_id))
