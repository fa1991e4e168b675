"""What the embedded engine does, seen through the port: fairness, prefixes, saved states, the loop.

Every function opens an engine of its own and returns numbers by name. Times are milliseconds unless the name says so.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import quantiles
from typing import Any

import msgspec

from bench.process import scratch
from headrace.engine import models
from headrace.engine.llamacpp.engine import LlamaCppEngine
from headrace.engine.port import Finish, ModelRequest, Text
from headrace.errors import EngineDied
from headrace.messages import Message

Numbers = dict[str, float]
ENDLESS: dict[str, Any] = {"ignore_eos": True}
_WORD_TOKENS = 1.2  # of a word of FILLER, about
FILLER = "The river ran past seven mills and under three bridges before it met the sea. "


def about(tokens: int, number: int = 0) -> str:
    """A text of so many tokens, different from its beginning on."""
    words = f"Chapter {number}. " + FILLER * (tokens // 10)
    return " ".join(words.split()[: int(tokens / _WORD_TOKENS)])


@asynccontextmanager
async def embedded(**settings: Any) -> AsyncIterator[LlamaCppEngine]:
    async with LlamaCppEngine(models.install("smollm2"), **settings) as engine:
        yield engine


async def timed(engine: LlamaCppEngine, request: ModelRequest) -> tuple[list[float], str, Finish]:
    """When the pieces came, what they said, and how it ended."""
    pieces: list[float] = []
    said: list[str] = []
    began = time.perf_counter()
    async with engine.stream(request) as chunks:
        async for chunk in chunks:
            if isinstance(chunk, Text):
                pieces.append(time.perf_counter() - began)
                said.append(chunk.text)
            elif isinstance(chunk, Finish):
                return pieces, "".join(said), chunk
    raise RuntimeError("an answer had no end")


def asked(text: str, tokens: int, **fields: Any) -> ModelRequest:
    return ModelRequest(prompt=text, max_tokens=tokens, temperature=0.0, extra=ENDLESS, **fields)


async def long_prompt(quick: bool) -> Numbers:
    """Eight streams run; a prompt of 2,000 tokens arrives. Gaps between tokens of the eight, before and while it is
    read."""
    tokens = 500 if quick else 2000
    async with embedded(slots=9, context=tokens + 256) as engine:
        gaps = await gaps_beside(engine, [about(tokens)], streams=8, lengths=tokens, before=160 if quick else 800)
    before, during = quantiles(gaps.before, n=100), quantiles(gaps.during, n=100)
    return {
        "gap_p50_before": before[49] * 1e3,
        "gap_p99_before": before[98] * 1e3,
        "gap_p50_during": during[49] * 1e3,
        "gap_p99_during": during[98] * 1e3,
        "gap_p99_ratio": during[98] / before[98],
        "long_first_s": gaps.first_s,
    }


class Gaps(msgspec.Struct, kw_only=True):
    """Seconds between two tokens of the streams, before the prompts came and while they were read, which took until
    `first_s` for the last one."""

    before: list[float] = []
    during: list[float] = []
    first_s: float = 0.0


async def gaps_beside(engine: LlamaCppEngine, prompts: list[str], *, streams: int, lengths: int, before: int) -> Gaps:
    """`streams` answers of so many tokens run, and after `before` gaps all prompts are asked for one token each."""
    gaps = Gaps()
    now = gaps.before
    stop = asyncio.Event()

    async def stream(number: int) -> None:
        last = 0.0
        async with engine.stream(asked(f"Story {number}. Once", lengths)) as chunks:
            async for _ in chunks:
                at = time.perf_counter()
                if last:
                    now.append(at - last)
                last = at
                if stop.is_set():
                    return

    running = [asyncio.ensure_future(stream(number)) for number in range(streams)]
    while len(gaps.before) < before:  # noqa: ASYNC110 - nobody announces it
        await asyncio.sleep(0.05)
    now = gaps.during
    answers = await asyncio.gather(*(timed(engine, asked(prompt, 1)) for prompt in prompts))
    gaps.first_s = max(pieces[0] for pieces, _, _ in answers)
    stop.set()
    await asyncio.gather(*running)
    return gaps


async def prefix(quick: bool) -> Numbers:
    """The first turn of a thread of 1,000 tokens, and the second, which begins with all of it."""
    async with embedded(slots=1, context=2048) as engine:
        story = Message(role="user", content=about(200 if quick else 1000) + "\nWhat is this about?")

        async def turn(*messages: Message) -> tuple[float, str, Finish]:
            request = ModelRequest(messages=messages, max_tokens=16, temperature=0.0)
            pieces, said, finish = await timed(engine, request)
            return pieces[0] * 1e3, said, finish

        cold, said, first = await turn(story)
        warm, _, second = await turn(
            story, Message(role="assistant", content=said), Message(role="user", content="Why?")
        )
    return {
        "prompt_tokens": first.usage.input_tokens,
        "cold_first": cold,
        "second_first": warm,
        "second_cached": second.usage.cached_tokens,
        "second_over_cold": warm / cold,
    }


async def restore(quick: bool) -> Numbers:
    """The engine's process is killed in an answer at about 1,000 tokens. The rest begins from the saved state, and once
    more from the text alone."""
    tokens = 200 if quick else 1000
    request = asked(about(tokens), 64)
    with scratch() as home:
        async with embedded(slots=1, context=2048, home=home, linger=1.0, snapshot_tokens=16) as engine:
            took: list[float] = []
            cached: list[int] = []
            for saved in (True, False):
                said = await _killed_in_the_middle(engine, request)
                if not saved:
                    _forget_states(home)
                await engine.busy_slots()  # waits for the restart
                pieces, _, finish = await timed(engine, asked(request.prompt or "", 16, continued=said))
                took.append(pieces[0] * 1e3)
                cached.append(finish.usage.cached_tokens)
            restored = engine.restored
    return {
        "restored_first": took[0],
        "recomputed_first": took[1],
        "restored_cached": cached[0],
        "recomputed_cached": cached[1],
        "answers_restored": restored,
        "recomputed_over_restored": took[1] / took[0],
    }


async def _killed_in_the_middle(engine: LlamaCppEngine, request: ModelRequest) -> str:
    said: list[str] = []
    try:
        async with engine.stream(request) as chunks:
            async for chunk in chunks:
                if isinstance(chunk, Text):
                    said.append(chunk.text)
                if len(said) == 40 and engine.pid is not None:
                    os.kill(engine.pid, signal.SIGKILL)
    except EngineDied:
        return "".join(said)
    raise RuntimeError("the engine survived")


def _forget_states(home: Path) -> None:
    for file in home.glob("snapshots/*/*.kv"):
        file.unlink()


async def loop_lag(quick: bool) -> Numbers:
    """How late the event loop is while eight answers come, beside how late it is at rest. Eight others come first: on a
    virtual machine that gives back idle memory, the first turn after a pause takes tens of milliseconds by itself.

    `busy_waited` is the longest that the loop stood in line for a core: what the model can do to it. The rest of a long
    lag is the machine below: the clock went on, and Linux ran neither this thread nor another in its place."""
    async with embedded(slots=8, context=256) as engine:
        rest = await _lags(lambda: asyncio.sleep(1.0 if quick else 5.0))
        await asyncio.gather(*(timed(engine, asked(f"Warm {number}", 2)) for number in range(8)))
        answers = [asked(f"Story {number}. Once", 24 if quick else 128) for number in range(8)]
        busy = await _lags(lambda: asyncio.gather(*(timed(engine, answer) for answer in answers)))
    return {
        "rest_p99": rest.percentiles[98],
        "busy_p50": busy.percentiles[49],
        "busy_p99": busy.percentiles[98],
        "busy_worst": busy.worst,
        "busy_waited": busy.waited,
    }


class Lags(msgspec.Struct):
    """In milliseconds. `waited` is the longest time in line for a core (proc(5), schedstat; 0 where there is none)."""

    percentiles: list[float]
    worst: float
    waited: float


async def _lags(work: Callable[[], Awaitable[object]]) -> Lags:
    lags: list[float] = []
    waits: list[float] = []
    working = asyncio.ensure_future(work())
    while not working.done():
        waited, due = _waited_ms(), time.perf_counter() + 0.002
        await asyncio.sleep(0.002)
        lags.append((time.perf_counter() - due) * 1e3)
        waits.append(_waited_ms() - waited)
    await working
    return Lags(quantiles(lags, n=100), max(lags), max(waits))


def _waited_ms() -> float:
    """How long this thread has stood in line for a core in its life."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_bytes().split()[1]) / 1e6
    except OSError:
        return 0.0
