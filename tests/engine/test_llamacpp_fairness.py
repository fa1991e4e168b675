"""Long prompts beside an answer, with the real SmolLM2: they are read in parts so small that it goes on."""

import asyncio

import pytest

from harness import run_async
from headrace.engine import models
from headrace.engine.llamacpp.engine import LlamaCppEngine
from headrace.engine.port import Finish, ModelRequest, Text
from headrace.testing.engine_contract import collect

SLOTS, LENGTH = 9, 160


def asked(text: str, tokens: int) -> ModelRequest:
    return ModelRequest(prompt=text, max_tokens=tokens, temperature=0.0, extra={"ignore_eos": True})


async def read(engine: LlamaCppEngine, number: int) -> int:
    """A long prompt like no other, to its first token. How many tokens it had."""
    finish = (await collect(engine, asked(f"{number} things: " + "one two three four five " * 15, 1)))[-1]
    assert isinstance(finish, Finish)
    return finish.usage.input_tokens


@pytest.mark.model
def test_an_answer_goes_on_while_eight_long_prompts_are_read() -> None:
    """Counted, not timed: a step computes fewer than twice as many tokens as there are slots, and is a token of the
    answer."""

    async def scenario() -> None:
        async with LlamaCppEngine(models.install("smollm2"), slots=SLOTS, context=LENGTH + 32) as engine:
            said = 0
            async with engine.stream(asked("Once upon a time", LENGTH)) as chunks:
                await anext(chunks)
                reading = asyncio.ensure_future(asyncio.gather(*(read(engine, number) for number in range(8))))
                async for chunk in chunks:
                    said += isinstance(chunk, Text)
                    if reading.done():
                        break
            prompts = sum(await reading)
            assert prompts > 600
            assert said >= prompts / (2 * SLOTS)

    run_async(scenario(), deadline=120)
