"""What the embedded engine does, seen through the port: fairness, prefixes, saved states.

Every function opens an engine of its own and returns numbers by name. Times are milliseconds unless the name says so.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import msgspec

from bench.process import scratch
from bench.texts import about
from headrace.engine import models
from headrace.engine.llamacpp.engine import LlamaCppEngine
from headrace.engine.port import Finish, ModelRequest, Text
from headrace.errors import EngineDied
from headrace.messages import Message

Numbers = dict[str, float]
ENDLESS: dict[str, Any] = {"ignore_eos": True}


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


def spread(name: str, values: Sequence[float]) -> Numbers:
    """The median by its name, and how far apart the takes are."""
    return {name: median(values), f"{name}_least": min(values), f"{name}_most": max(values)}


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
        "prompt_tokens": gaps.prompt_tokens,
        "gaps_before": len(gaps.before),
        "gaps_during": len(gaps.during),
        "long_first_s": gaps.first_s,
    }


class Gaps(msgspec.Struct, kw_only=True):
    """Seconds between two tokens of the streams, before the prompts came and while they were read, which took until
    `first_s` for the last one. The shortest prompt had `prompt_tokens`, counted by the engine."""

    before: list[float] = []
    during: list[float] = []
    first_s: float = 0.0
    prompt_tokens: int = 0


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
    gaps.prompt_tokens = min(finish.usage.input_tokens for _, _, finish in answers)
    stop.set()
    await asyncio.gather(*running)
    return gaps


async def prefix(quick: bool) -> Numbers:
    """Threads of 1,000 tokens and more, one after the other, each with a text of its own: the first turn, and the
    second, which begins with all of it. Tokens are counted by the engine."""
    takes, tokens = (2, 200) if quick else (7, 1000)
    async with embedded(slots=1, context=2048) as engine:
        await timed(engine, asked("Once", 2))
        turns = [await _two_turns(engine, about(tokens, 300 + number)) for number in range(takes)]
    cold = [first.usage for (_, first), _ in turns]
    warm = [second.usage for _, (_, second) in turns]
    return {
        "takes": takes,
        "prompt_tokens_least": min(usage.input_tokens for usage in cold),
        "prompt_tokens_most": max(usage.input_tokens for usage in cold),
        "cold_cached_most": max(usage.cached_tokens for usage in cold),
        "second_cached_least": min(usage.cached_tokens for usage in warm),
        "second_read_anew_most": max(usage.input_tokens - usage.cached_tokens for usage in warm),
        **spread("cold_first", [first for (first, _), _ in turns]),
        **spread("second_first", [second for _, (second, _) in turns]),
        **spread("second_over_cold", [second / first for (first, _), (second, _) in turns]),
    }


async def _two_turns(engine: LlamaCppEngine, text: str) -> tuple[tuple[float, Finish], tuple[float, Finish]]:
    """Milliseconds to the first token of each, and how it ended."""
    story = Message(role="user", content=f"{text}\nWhat is this about?")

    async def turn(*messages: Message) -> tuple[float, str, Finish]:
        request = ModelRequest(messages=messages, max_tokens=16, temperature=0.0)
        pieces, said, finish = await timed(engine, request)
        return pieces[0] * 1e3, said, finish

    cold, said, first = await turn(story)
    warm, _, second = await turn(story, Message(role="assistant", content=said), Message(role="user", content="Why?"))
    return (cold, first), (warm, second)


async def restore(quick: bool) -> Numbers:
    """The engine's process is killed in an answer, behind a prompt of 1,000 tokens and more. The rest begins from the
    saved state, and after another text from the text alone; who comes first changes. The time to the rest's first token
    has the reading of the state in it, but not the process' restart, which is the same for both."""
    takes, tokens = (1, 200) if quick else (5, 1000)
    with scratch() as home:
        async with embedded(slots=1, context=2048, home=home, linger=1.0, snapshot_tokens=16) as engine:
            texts = (about(tokens, 400 + number) for number in range(2 * takes))
            pairs: list[dict[bool, tuple[float, Finish]]] = []
            for take in range(takes):
                order = (True, False) if take % 2 == 0 else (False, True)
                pairs.append({saved: await _cut(engine, next(texts), home if not saved else None) for saved in order})
            restored = engine.restored
    ends = {saved: [pair[saved][1].usage for pair in pairs] for saved in (True, False)}
    return {
        "takes": takes,
        "tokens_least": min(usage.input_tokens for usages in ends.values() for usage in usages),
        "tokens_most": max(usage.input_tokens for usages in ends.values() for usage in usages),
        "restored_cached_least": min(usage.cached_tokens for usage in ends[True]),
        "recomputed_cached_most": max(usage.cached_tokens for usage in ends[False]),
        "answers_restored": restored,
        **spread("restored_first", [pair[True][0] for pair in pairs]),
        **spread("recomputed_first", [pair[False][0] for pair in pairs]),
        **spread("recomputed_over_restored", [pair[False][0] / pair[True][0] for pair in pairs]),
    }


async def _cut(engine: LlamaCppEngine, text: str, forget: Path | None) -> tuple[float, Finish]:
    """Of an answer that was cut by its process' death: milliseconds to the rest's first token, and how that ended.
    What was saved in `forget` is deleted before."""
    said = await _killed_in_the_middle(engine, asked(text, 64))
    if forget is not None:
        _forget_states(forget)
    await engine.busy_slots()  # waits for the restart
    pieces, _, finish = await timed(engine, asked(text, 16, continued=said))
    return pieces[0] * 1e3, finish


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
