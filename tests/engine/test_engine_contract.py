"""The contract, on the engines that need no model."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fake_upstream import FOR_EVER, Answer, Asked, FakeUpstream, Step, delta, sse
from harness import until
from headrace.engine.openai import OpenAIEngine
from headrace.engine.port import Engine, ModelRequest
from headrace.engine.scripted import Deltas, Hang, ScriptedEngine
from headrace.engine.scripted import Step as ScriptStep
from headrace.testing.engine_contract import LONG, EngineContract

ANSWER: list[Step] = [
    sse(delta(role="assistant", content="")),
    *(sse(delta(content=word)) for word in ("What ", "a ", "fine ", "día ", "帮 ", "😀")),
    sse(delta("stop"), {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 6}}, "[DONE]"),
]


class TestScripted(EngineContract):
    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Engine]:
        async with ScriptedEngine(self._script) as engine:
            yield engine

    @staticmethod
    def _script(request: ModelRequest) -> list[ScriptStep]:
        return [*Deltas(5), Hang()] if request == LONG else [*Deltas(5)]

    async def idle(self, engine: Engine) -> None:
        assert isinstance(engine, ScriptedEngine)
        await until(lambda: engine.open_now == 0)


class TestOpenAI(EngineContract):
    """`LONG` hangs at the server after its text, so only a closed connection ends it."""

    upstream: FakeUpstream

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Engine]:
        async with (
            FakeUpstream(choose=self._answer) as self.upstream,
            OpenAIEngine(self.upstream.url, model="m") as engine,
        ):
            yield engine

    @staticmethod
    def _answer(asked: Asked) -> Answer:
        return Answer([*ANSWER[:3], FOR_EVER] if "story" in str(asked.body) else ANSWER)

    async def idle(self, engine: Engine) -> None:
        await until(lambda: self.upstream.open_now == 0)
