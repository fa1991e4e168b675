"""What a setting of the embedded engine buys and what it costs: saved states, the type of the cache, guesses ahead.

As in `engine_measures.py`, every function opens engines of its own and returns numbers by name.
"""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from bench.engine_measures import Numbers, asked, embedded, spread, timed
from bench.perplexity import TEXT, Foretold, same_until, windows
from bench.process import scratch
from bench.weights_llamacpp import foretold, tokens_of
from headrace.engine import models


async def snapshots(quick: bool) -> Numbers:
    """What saving costs an answer that nothing happens to: engines that save never, and after so many tokens, in
    turns."""
    rounds, tokens = (1, 64) if quick else (7, 256)
    every: dict[str, dict[str, Any]] = {"off": {}, "64": {"snapshot_tokens": 64}, "16": {"snapshot_tokens": 16}}
    taken = await _in_turns(every, rounds, [("Story {}. Once upon a time there was", tokens)], context=1024)
    out: Numbers = {"rounds": rounds}
    for name in every:
        out |= spread(f"tokens_per_s_{name}", [one[name, 0] for one in taken])
    for name in ("64", "16"):
        out |= spread(f"cost_of_{name}", [1 - one[name, 0] / one["off", 0] for one in taken])
    return out


async def _in_turns(
    engines: Mapping[str, Mapping[str, Any]], rounds: int, prompts: Sequence[tuple[str, int]], *, context: int
) -> list[dict[tuple[str, int], float]]:
    """Tokens/s between the first piece and the last, by engine and by number of the prompt, of each round. A prompt has
    a place for the round's number, so that it is new, and the tokens of its answer. Who comes first changes."""
    taken = []
    async with AsyncExitStack() as stack:
        opened = {
            name: await stack.enter_async_context(embedded(slots=1, context=context, **settings))
            for name, settings in engines.items()
        }
        for engine in opened.values():
            await timed(engine, asked("Once upon a time", 8))
        for turn in range(rounds):
            rates: dict[tuple[str, int], float] = {}
            for name in list(opened) if turn % 2 == 0 else reversed(opened):
                for number, (prompt, tokens) in enumerate(prompts):
                    pieces, _, finish = await timed(opened[name], asked(prompt.format(turn), tokens))
                    rates[name, number] = (finish.usage.output_tokens - 1) / (pieces[-1] - pieces[0])
            taken.append(rates)
    return taken


async def cache_types(quick: bool) -> Numbers:
    """The KV cache as f16, q8_0 and q4_0: memory, and whether what is said stays the same: how well a public text is
    foretold, how often the same token is the likeliest in it, and the part of an answer, drawn with a fixed seed or
    greedy, before it differs from that of f16 (`f16_seeded_again`: from its own, asked a second time)."""
    taken = {kv: await _with_cache(kv, quick) for kv in ("f16", "q8_0", "q4_0")}
    full = taken["f16"]
    out: Numbers = {f"{kv}_mib": one.mib for kv, one in taken.items()}
    out["f16_seeded_again"] = _agreement(full.again, full.seeded)
    out |= {f"{kv}_perplexity": one.foretold.perplexity for kv, one in taken.items()}
    for kv in ("q8_0", "q4_0"):
        one = taken[kv]
        out[f"{kv}_over_f16"] = one.mib / full.mib
        out[f"{kv}_perplexity_ratio"] = one.foretold.perplexity / full.foretold.perplexity
        out[f"{kv}_same_token"] = one.foretold.agreement(full.foretold)
        out[f"{kv}_seeded_agreement"] = _agreement(one.seeded, full.seeded)
        out[f"{kv}_greedy_agreement"] = _agreement(one.greedy, full.greedy)
    return out


class _Cached(msgspec.Struct, frozen=True, kw_only=True):
    mib: float
    greedy: list[str]
    seeded: list[str]
    again: list[str]
    foretold: Foretold


async def _with_cache(kv: str, quick: bool) -> _Cached:
    questions = [asked(f"Fact number {number}: The capital of France is", 48) for number in range(2 if quick else 12)]
    drawn = [msgspec.structs.replace(question, temperature=0.8, seed=7) for question in questions]
    tokens = await tokens_of(models.install("smollm2"), TEXT.read_text())
    texts = windows(tokens, size=64 if quick else 512, count=1 if quick else 4)
    with scratch() as home:
        async with embedded(slots=4, context=4096, kv=kv, home=home, linger=1.0) as engine:
            assert engine.pid is not None
            greedy = [(await timed(engine, question))[1] for question in questions]
            seeded, again = [[(await timed(engine, question))[1] for question in drawn] for _ in range(2)]
            mib = _anonymous_mib(engine.pid)
            thought = await foretold(home, texts)
    return _Cached(mib=mib - await _without_cache(kv), greedy=greedy, seeded=seeded, again=again, foretold=thought)


async def _without_cache(kv: str) -> float:
    """What the process takes with next to no cache."""
    async with embedded(slots=1, context=32, kv=kv) as engine:
        assert engine.pid is not None
        await timed(engine, asked("Once", 2))
        return _anonymous_mib(engine.pid)


def _agreement(ones: Sequence[str], others: Sequence[str]) -> float:
    """The median share of an answer before the first difference."""
    pairs = zip(ones, others, strict=True)
    return median(same_until(one, other) / max(1, len(one), len(other)) for one, other in pairs)


def _anonymous_mib(pid: int) -> float:
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("RssAnon")]
    return int(line.split()[1]) / 1024


async def guessing(quick: bool) -> Numbers:
    """Tokens/s with and without n-gram guesses, in turns, where the answer repeats the prompt and where it does not."""
    rounds, tokens = (1, 32) if quick else (7, 128)
    lines = "\n".join(f"item {number}: red, green, blue, yellow, {number * 7}" for number in range(12))
    prompts = {
        "repeating": f"List {{}}\n{lines}\n\nThe same list again:\n\n{lines[:60]}",
        "story": "Story {}. Once upon a time in a village",
    }
    engines: dict[str, dict[str, Any]] = {"plain": {}, "ngram": {"ngram": True}}
    asked_for = [(prompt, tokens) for prompt in prompts.values()]
    taken = await _in_turns(engines, rounds, asked_for, context=1024)
    out: Numbers = {"rounds": rounds}
    for name in engines:
        for number, text in enumerate(prompts):
            out |= spread(f"{text}_{name}", [one[name, number] for one in taken])
    for number, text in enumerate(prompts):
        out |= spread(f"{text}_gain", [one["ngram", number] / one["plain", number] for one in taken])
    return out
