"""What a setting of the embedded engine buys and what it costs: saved states, the type of the cache, guesses ahead.

As in `engine_measures.py`, every function opens engines of its own and returns numbers by name.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import median

import msgspec

from bench.engine_measures import Numbers, asked, embedded, timed
from bench.perplexity import TEXT, Foretold, same_until, windows
from bench.process import scratch
from bench.weights_llamacpp import foretold, tokens_of
from headrace.engine import models


async def snapshots(quick: bool) -> Numbers:
    """What saving costs an answer that nothing happens to."""
    tokens = 64 if quick else 256
    rates: dict[int | None, float] = {}
    for every in (None, 64, 16):
        async with embedded(slots=1, context=1024, snapshot_tokens=every) as engine:
            await timed(engine, asked("Once upon a time", 8))
            pieces, _, _ = await timed(engine, asked("Once upon a time there was", tokens))
            rates[every] = len(pieces) / pieces[-1]
    return {f"tokens_per_s_{every or 'off'}": rate for every, rate in rates.items()} | {
        "cost_of_64": 1 - rates[64] / (rates[None] or 1.0)
    }


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
    """Tokens/s with and without n-gram guesses, where the answer repeats the prompt and where it does not."""
    lines = "\n".join(f"item {number}: red, green, blue, yellow, {number * 7}" for number in range(12))
    prompts = {
        "repeating": f"{lines}\n\nThe same list again:\n\n{lines[:60]}",
        "story": "Once upon a time in a village",
    }
    rates: Numbers = {}
    for ngram in (False, True):
        async with embedded(slots=1, context=1024, ngram=ngram) as engine:
            for name, prompt in prompts.items():
                pieces, _, finish = await timed(engine, asked(prompt, 32 if quick else 128))
                tokens = finish.usage.output_tokens
                rates[f"{name}_{'ngram' if ngram else 'plain'}"] = tokens / (pieces[-1] - pieces[0])
    return rates | {f"{name}_gain": rates[f"{name}_ngram"] / rates[f"{name}_plain"] for name in prompts}
