"""The measured Headrace of `scripts/bench engines`: an agent on the embedded engine, whose answers never end by
themselves, so that every answer has as many tokens as were asked for."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from headrace import Agent
from headrace.agent.app import App
from headrace.engine import models
from headrace.engine.llamacpp.engine import LlamaCppEngine
from headrace.engine.port import Capabilities, Chunk, ModelRequest

SLOTS = 16
CONTEXT = 512


class Endless:
    """The embedded engine, in a process that the load client finds in `home` too."""

    name = "llamacpp"

    def __init__(self, home: Path) -> None:
        path = models.install("smollm2")
        self._engine = LlamaCppEngine(path, slots=SLOTS, context=CONTEXT, home=home, linger=5.0)
        self.model = self._engine.model

    @property
    def capabilities(self) -> Capabilities:
        return self._engine.capabilities

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[Chunk]]:
        request = msgspec.structs.replace(request, extra={**request.extra, "ignore_eos": True})
        async with self._engine.stream(request) as chunks:
            yield chunks

    async def __aenter__(self) -> "Endless":
        await self._engine.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._engine.__aexit__(*exc)


app = App(Agent(name="bench", engine=Endless(Path(os.environ["BENCH_HOME"]))))
