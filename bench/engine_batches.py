"""How many tokens a step of the embedded engine may hold: what that is for those who wait for their next token, and
what it costs those whose prompt is read.

As in `engine_measures.py`, every function opens engines of its own and returns numbers by name.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack
from statistics import median, quantiles

from bench.engine_measures import Gaps, Numbers, asked, embedded, gaps_beside, timed
from bench.texts import about
from headrace.engine.llamacpp.engine import LlamaCppEngine

WIDE = 32
"""Tokens: as wide as steps were before they followed the number of slots."""


async def long_prompts(quick: bool) -> Numbers:
    """One stream runs; eight prompts of 1,800 tokens arrive. The worst gap between two of its tokens."""
    tokens = 200 if quick else 1800
    async with embedded(slots=9, context=tokens + 256) as engine:
        prompts = [about(tokens, number) for number in range(8)]
        gaps = await gaps_beside(engine, prompts, streams=1, lengths=tokens, before=64)
    return {
        "gap_worst_before": max(gaps.before) * 1e3,
        "gap_p50_during": median(gaps.during) * 1e3,
        "gap_worst_during": max(gaps.during) * 1e3,
        "tokens_said_meanwhile": len(gaps.during),
        "prompt_tokens_least": gaps.prompt_tokens,
        "last_first_s": gaps.first_s,
    }


async def batches(quick: bool) -> Numbers:
    """The default beside the wide step, in turns: a prompt that is read alone, and one that is read beside eight
    streams. Ratios are made within a turn."""
    rounds, tokens = (1, 200) if quick else (5, 1000)
    taken: dict[str, list[dict[str, float]]] = {"default": [], "wide": []}
    async with AsyncExitStack() as stack:
        engines = {
            name: await stack.enter_async_context(embedded(slots=9, context=tokens + 256, batch=batch))
            for name, batch in (("default", None), ("wide", WIDE))
        }
        for turn in range(rounds):
            for name, engine in engines.items():
                taken[name].append(await _one(engine, tokens, turn))

    def versus(number: str, combine: Callable[[float, float], float]) -> float:
        pairs = zip(taken["default"], taken["wide"], strict=True)
        return median(combine(ours[number], wide[number]) for ours, wide in pairs)

    return {
        **{
            f"{number}_{name}": median(one[number] for one in rows)
            for name, rows in taken.items()
            for number in rows[0]
        },
        "alone_over_wide": versus("alone_tokens_per_s", lambda ours, wide: ours / wide),
        "beside_over_wide": versus("beside_tokens_per_s", lambda ours, wide: ours / wide),
    }


async def _one(engine: LlamaCppEngine, tokens: int, turn: int) -> dict[str, float]:
    pieces, _, finish = await timed(engine, asked(about(tokens // 2, 100 + turn), 1))
    gaps: Gaps = await gaps_beside(engine, [about(tokens, 200 + turn)], streams=8, lengths=tokens, before=160)
    before, during = quantiles(gaps.before, n=100), quantiles(gaps.during, n=100)
    return {
        "alone_tokens_per_s": finish.usage.input_tokens / pieces[0],
        "beside_tokens_per_s": gaps.prompt_tokens / gaps.first_s,
        "gap_p99_ratio": during[98] / before[98],
    }
