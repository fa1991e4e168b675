"""What an engine promises that says how many answers it gives at once; the part of the engine contract that others pass
by."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
import pytest

from headrace.engine.port import Engine, Finish, Queued
from headrace.testing.engine_contract.requests import LONG, REQUEST, text_of
from headrace.testing.engine_contract.subject import Subject


class LineContract(Subject):
    @asynccontextmanager
    async def _full(self) -> AsyncGenerator[tuple[Engine, AsyncExitStack] | None, None]:
        """An engine and the answers that it is giving, as many as it can; None if it does not say how many."""
        async with self.opened() as engine:
            if engine.capabilities.slots is None:
                yield None
                return
            async with AsyncExitStack() as answers:
                for number in range(engine.capabilities.slots):
                    busy = msgspec.structs.replace(LONG, session=f"busy {number}")
                    await anext(await answers.enter_async_context(engine.stream(busy)))
                yield engine, answers
            await self.idle(engine)

    def test_who_finds_every_place_taken_is_told_where_it_stands_and_then_answered(self) -> None:
        async def check() -> None:
            async with self._full() as full:
                if full is None:
                    return
                engine, answers = full
                async with engine.stream(REQUEST) as chunks:
                    assert await anext(chunks) == Queued(1)
                    await answers.aclose()
                    rest = [chunk async for chunk in chunks]
                assert rest[0] == Queued(0)
                assert text_of(rest)
                assert isinstance(rest[-1], Finish)
                timing = rest[-1].timing
                assert 0 < timing.queued_ms <= timing.total_ms
                assert timing.first_token_ms is None or timing.queued_ms <= timing.first_token_ms

        self.run(check())

    def test_who_leaves_the_line_is_not_answered_and_those_behind_it_move_up(self) -> None:
        async def check() -> None:
            async with self._full() as full:
                if full is None:
                    return
                engine, answers = full
                async with AsyncExitStack() as impatient:
                    first = await impatient.enter_async_context(engine.stream(LONG))
                    assert await anext(first) == Queued(1)
                    async with engine.stream(REQUEST) as second:
                        assert await anext(second) == Queued(2)
                        await impatient.aclose()
                        assert await anext(second) == Queued(1)
                        await answers.aclose()
                        rest = [chunk async for chunk in second]
                assert rest[0] == Queued(0)
                assert isinstance(rest[-1], Finish)

        self.run(check())

    def test_a_place_is_free_again_however_an_answer_was_left(self) -> None:
        async def check() -> None:
            async with self._full() as full:
                if full is None:
                    return
                engine, answers = full
                in_line = asyncio.Event()
                waiting = asyncio.ensure_future(_wait(engine, in_line))
                await in_line.wait()
                waiting.cancel()
                await asyncio.wait([waiting])
                await answers.aclose()
                for _ in range(engine.capabilities.slots or 0):
                    async with engine.stream(LONG):
                        pass
                    with pytest.raises(KeyError):
                        await _fail(engine)
                async with engine.stream(REQUEST) as chunks:
                    assert not isinstance(await anext(chunks), Queued)

        self.run(check())


async def _wait(engine: Engine, in_line: asyncio.Event) -> None:
    async with engine.stream(LONG) as chunks:
        async for _ in chunks:
            in_line.set()


async def _fail(engine: Engine) -> None:
    async with engine.stream(LONG) as chunks:
        assert not isinstance(await anext(chunks), Queued)
        raise KeyError
