"""A real model, from a GGUF file."""

from harness import run_async
from headrace.engine import models
from headrace.engine.port import ModelRequest
from headrace.engine.transformers.engine import TransformersEngine
from headrace.messages import Message
from headrace.testing.engine_contract import collect, text_of


async def answer(engine: TransformersEngine, request: ModelRequest) -> str:
    async with engine:
        return text_of(await collect(engine, request))


def test_a_real_model_from_a_gguf_file_knows_the_capital_of_france() -> None:
    asked = ModelRequest(
        messages=(Message(role="user", content="What is the capital of France?"),), max_tokens=12, temperature=0.0
    )
    engine = TransformersEngine(models.install("smollm2"), slots=1, context=128)
    assert "Paris" in run_async(answer(engine, asked), deadline=240)
