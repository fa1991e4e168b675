"""The contract, on the engines that need no model."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fake_upstream import FOR_EVER, Answer, Asked, FakeUpstream, Step, delta, sse, vectors_of
from harness import until
from headrace.engine.anthropic.engine import AnthropicEngine
from headrace.engine.openai.engine import OpenAIEngine
from headrace.engine.port import Engine, ModelRequest
from headrace.engine.presets import CONTINUING
from headrace.engine.scripted import Deltas, Hang, ScriptedEngine
from headrace.engine.scripted import Step as ScriptStep
from headrace.testing.engine_contract import LONG, EngineContract

WORDS = ("What ", "a ", "fine ", "día ", "帮 ", "😀")


def answer_after(said: str) -> list[Step]:
    """What a server says that has been told the beginning of its answer."""
    words = [word for at, word in enumerate(WORDS) if len("".join(WORDS[:at])) >= len(said)]
    return [
        sse(delta(role="assistant", content="")),
        *(sse(delta(content=word)) for word in words),
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
        if asked.path.endswith("/embeddings"):
            return vectors_of(asked.body["input"])
        *_, last = asked.body.get("messages", [{"role": "user", "content": "Once upon a time"}])
        steps = answer_after(last["content"] if last["role"] == "assistant" else "")
        return Answer([*steps[:3], FOR_EVER] if "story" in str(asked.body) else steps)

    async def idle(self, engine: Engine) -> None:
        await until(lambda: self.upstream.open_now == 0)


class TestOpenAIThatGoesOn(TestOpenAI):
    """A server such as vLLM."""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Engine]:
        async with (
            FakeUpstream(choose=self._answer) as self.upstream,
            OpenAIEngine(self.upstream.url, model="m", capabilities=CONTINUING) as engine,
        ):
            yield engine


class TestAnthropic(EngineContract):
    """A model of the generation that takes a prefill. `LONG` hangs as above."""

    upstream: FakeUpstream

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Engine]:
        async with (
            FakeUpstream(choose=self._answer) as self.upstream,
            AnthropicEngine(self.upstream.url, model="claude-haiku-4-5") as engine,
        ):
            yield engine

    @staticmethod
    def _answer(asked: Asked) -> Answer:
        last = asked.body["messages"][-1]
        said = last["content"] if last["role"] == "assistant" else ""
        words = [word for at, word in enumerate(WORDS) if len("".join(WORDS[:at])) >= len(said)]
        begin: list[dict[str, object]] = [
            {"type": "message_start", "message": {"usage": {"input_tokens": 5, "output_tokens": 1}}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        ]
        spoken: list[dict[str, object]] = [
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}} for word in words
        ]
        end: list[dict[str, object]] = [
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 6}},
            {"type": "message_stop"},
        ]
        if "story" in str(asked.body):
            return Answer([sse(*begin, *spoken[:2]), FOR_EVER])
        return Answer([sse(event) for event in (*begin, *spoken, *end)])

    async def idle(self, engine: Engine) -> None:
        await until(lambda: self.upstream.open_now == 0)
