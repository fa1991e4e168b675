"""The measured Headrace: an agent on the shared fake model, served by `headrace serve bench.app:app`."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager

from bench.model import generate, parse_plan
from headrace import Agent
from headrace.agent.app import App
from headrace.engine.port import Capabilities, Chunk, Finish, ModelRequest, Text


class PacedEngine:
    """Headrace's port around the shared fake model: the plan is the last user message."""

    name = "paced"
    model = "paced"
    capabilities = Capabilities()

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        return self._opened(request)

    @asynccontextmanager
    async def _opened(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[Chunk]]:
        plan = parse_plan(request.messages[-1].content)
        chunks: AsyncGenerator[Chunk, None] = generate(plan, Text, Finish(reason="stop"))
        async with aclosing(chunks):
            yield chunks

    async def __aenter__(self) -> "PacedEngine":
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None


app = App(Agent(name="bench", engine=PacedEngine()))
