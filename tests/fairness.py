"""An answer beside a long prompt, whatever engine reads it: counted, never timed."""

import asyncio

from headrace.engine.port import Engine, Finish, ModelRequest, Text
from headrace.testing.engine_contract import collect

_ENDLESS = ModelRequest(prompt="One two three", grammar='root ::= (" " [a-z]{1,12}){300}', max_tokens=300)


async def heard_beside(engine: Engine, prompt: str) -> tuple[int, int]:
    """How many pieces of an answer come from when `prompt` is asked until its first token, and how many tokens it has.

    Where the prompt is read in one go, that is one piece, and those that were on their way.
    """
    heard = 0
    async with engine.stream(_ENDLESS) as chunks:
        await anext(chunks)
        reading = asyncio.ensure_future(_read(engine, prompt))
        async for chunk in chunks:
            heard += isinstance(chunk, Text)
            if reading.done():
                break
    return heard, await reading


async def _read(engine: Engine, prompt: str) -> int:
    finish = (await collect(engine, ModelRequest(prompt=prompt, max_tokens=1)))[-1]
    assert isinstance(finish, Finish)
    return finish.usage.input_tokens
