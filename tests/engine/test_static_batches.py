"""Batching as it once was, in virtual time, beside what a pool makes of the same engine."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from harness import until
from headrace.engine.pool.pool import EnginePool
from headrace.engine.port import Engine, Finish, ModelRequest, Text
from headrace.engine.scripted import Hang, Pause, ScriptedEngine, Step
from headrace.engine.static_batches import StaticBatches
from headrace.testing.engine_contract import LONG, REQUEST, EngineContract, collect
from virtual_time import run_virtually


class TestStaticBatches(EngineContract):
    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Engine]:
        self.inner = ScriptedEngine(self._script)
        async with StaticBatches(self.inner, size=2, wait=0.001) as engine:
            yield engine

    @staticmethod
    def _script(request: ModelRequest) -> list[Step]:
        words: list[Step] = [Text(f"{word} ") for word in ["one", "two", "three"]]
        return [*words, Hang()] if request == LONG else words

    async def idle(self, engine: Engine) -> None:
        await until(lambda: not self.inner.open_now)


def taking(seconds: int) -> ModelRequest:
    return msgspec.structs.replace(REQUEST, seed=seconds)


def engine() -> ScriptedEngine:
    return ScriptedEngine(lambda request: [Pause(float(request.seed or 0)), Text("done")])


async def ended_at(engine: Engine, request: ModelRequest) -> tuple[float, float]:
    """When, and how long it had waited, in seconds."""
    finish = (await collect(engine, request))[-1]
    assert isinstance(finish, Finish)
    return asyncio.get_running_loop().time(), finish.timing.queued_ms / 1000


def test_a_batch_starts_together_and_the_next_one_when_the_longest_answer_has_ended() -> None:
    async def scenario() -> None:
        async with StaticBatches(engine(), size=2, wait=0.5) as batches:
            ended = await asyncio.gather(*(ended_at(batches, taking(seconds)) for seconds in (1, 9, 1, 1, 3)))
            assert ended == [(1, 0), (9, 0), (10, 9), (10, 9), (13, 10)]

    run_virtually(scenario())


def test_a_batch_that_does_not_fill_starts_after_the_wait_and_one_that_everybody_leaves_holds_up_nobody() -> None:
    async def scenario() -> None:
        async with StaticBatches(engine(), size=2, wait=0.5) as batches:
            assert await ended_at(batches, taking(1)) == (1.5, 0.5)
            first = asyncio.ensure_future(collect(batches, taking(1000)))
            await asyncio.sleep(0.6)
            second = asyncio.ensure_future(ended_at(batches, taking(1)))
            await asyncio.sleep(0.6)
            first.cancel()
            ended, waited = await second
            assert (round(ended, 6), round(waited, 6)) == (3.7, 0.6)

    run_virtually(scenario())


def test_answers_of_mixed_length_take_longer_in_batches_than_with_places_given_out_as_they_become_free() -> None:
    async def scenario() -> None:
        lengths = [1, 8, 1, 1, 1, 8, 1, 1, 1, 8, 1, 1]

        async def all_of(one: Engine) -> float:
            began = asyncio.get_running_loop().time()
            await asyncio.gather(*(collect(one, taking(seconds)) for seconds in lengths))
            return asyncio.get_running_loop().time() - began

        async with StaticBatches(engine(), size=4) as batches, EnginePool({"a": engine()}, limit=4) as pool:
            assert (await all_of(batches), await all_of(pool)) == (24, 11)

    run_virtually(scenario())
