"""The first token of an engine: before anybody trusts it, it says one."""

import asyncio

from headrace.engine.port import Engine, ModelRequest
from headrace.errors import EngineRejected, EngineTimeout
from headrace.messages import Message

WITHIN_S = 60.0
"""So long may the first token take; a server may compile something for it."""


async def say_a_token(engine: Engine, *, within: float) -> None:
    """Have it say one within so many seconds, by whatever limit it takes: some servers load a model, say that they are
    well, and die of the first request. Raises what `Engine.stream` raises."""
    try:
        async with asyncio.timeout(within):
            try:
                await say(engine, tokens=1)
            except EngineRejected:
                await say(engine, tokens=16)  # some hosted models refuse so small a limit
    except TimeoutError as exc:
        raise EngineTimeout(f"The model {engine.model} did not say one token within {within:g} s.") from exc


async def say(engine: Engine, *, tokens: int) -> None:
    """Have it say so many at most. Raises what `Engine.stream` raises."""
    hello = ModelRequest(messages=(Message(role="user", content="Hi"),), max_tokens=tokens)
    async with engine.stream(hello) as chunks:
        async for _ in chunks:
            pass
