"""The measured Headrace of `scripts/bench engines`: an agent on the embedded engine, whose answers never end by
themselves, so that every answer has as many tokens as were asked for. With `BENCH_LOOKS`, a file, it also looks at its
own event loop (`loop_probe.py`)."""

import os
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import msgspec

from bench.loop_probe import LOOKS, LoopProbe, write_when_asked
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

    def __init__(self, home: Path, *, looks: Path | None = None) -> None:
        self._looks, self._looking = looks, ExitStack()
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
        if self._looks is not None:
            write_when_asked(self._looking.enter_context(LoopProbe()), self._looks)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._looking.close()
        await self._engine.__aexit__(*exc)


def _looks() -> Path | None:
    wanted = os.environ.get(LOOKS)
    return Path(wanted) if wanted else None


app = App(Agent(name="bench", engine=Endless(Path(os.environ["BENCH_HOME"]), looks=_looks())))
