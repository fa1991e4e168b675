"""Continuous against static batching: requests of mixed length at the same engine, admitted whenever a place becomes
free, and in batches that start together and wait for their longest answer; in turns.

`scripts/bench engines --only batching`. A request comes every 20 ms, so that most of them wait for a place, and the
time to the first token has that wait in it. No prompt comes twice, so that none is found in a cache.
"""

import asyncio
from collections.abc import Iterator, Sequence
from itertools import count
from statistics import median

import msgspec

from bench.engine_measures import Numbers, asked, embedded, spread
from headrace.engine.port import Engine, Finish, ModelRequest
from headrace.engine.static_batches import StaticBatches

LENGTHS = (8, 16, 8, 96, 24, 8, 48, 16)
"""Tokens of the answers, over and over: most are short, a few are long."""
SLOTS = 8
APART = 0.02  # seconds between two requests


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """`first` are milliseconds from asking to the first token."""

    tokens_per_s: float
    first: tuple[float, ...]


Round = dict[str, Outcome]
"""`continuous` and `static`."""


async def measure(engine: Engine, requests: Sequence[ModelRequest]) -> Outcome:
    """All requests, one a moment after the other, to the end of the last answer."""
    clock = asyncio.get_running_loop().time
    began = clock()

    async def answer(number: int, request: ModelRequest) -> Finish:
        await asyncio.sleep(number * APART)
        async with engine.stream(request) as chunks:
            async for chunk in chunks:
                if isinstance(chunk, Finish):
                    return chunk
        raise RuntimeError("an answer had no end")

    ends = await asyncio.gather(*(answer(number, request) for number, request in enumerate(requests)))
    tokens = sum(end.usage.output_tokens for end in ends)
    first = tuple(end.timing.first_token_ms or 0.0 for end in ends)
    return Outcome(tokens_per_s=tokens / (clock() - began), first=first)


async def compare(engine: Engine, *, slots: int, lengths: Sequence[int], rounds: int) -> list[Round]:
    """Both ways in each round, after a batch that nobody counts; who comes first changes. `slots` is how many answers
    the engine gives at once. Requests of both have the same lengths in the same order."""
    numbers = count()
    ways = {"continuous": engine, "static": StaticBatches(engine, size=slots, wait=slots * APART)}
    await measure(engine, requests_of(lengths[:slots], numbers))
    taken = []
    for turn in range(rounds):
        order = list(ways) if turn % 2 == 0 else list(reversed(ways))
        taken.append({name: await measure(ways[name], requests_of(lengths, numbers)) for name in order})
    return taken


def requests_of(lengths: Sequence[int], numbers: Iterator[int]) -> list[ModelRequest]:
    """One for each length, whose answer the model may not end before. Each prompt has the next of the numbers first."""
    return [asked(f"{next(numbers)} is the number of this story. Once upon a time", length) for length in lengths]


def told(rounds: Sequence[Round]) -> Numbers:
    """Rates and their ratio as medians of the rounds; the times to the first token are those of all rounds together,
    in milliseconds."""
    out: Numbers = {"rounds": len(rounds), "requests_a_round": len(rounds[0]["continuous"].first)}
    for name in ("continuous", "static"):
        out |= spread(f"{name}_tokens_per_s", [one[name].tokens_per_s for one in rounds])
    out |= spread(
        "continuous_over_static", [one["continuous"].tokens_per_s / one["static"].tokens_per_s for one in rounds]
    )
    for name in ("continuous", "static"):
        first = sorted(ms for one in rounds for ms in one[name].first)
        out |= {f"{name}_first_p50_ms": median(first), f"{name}_first_p95_ms": first[len(first) * 95 // 100]}
    return out


async def batching(quick: bool) -> Numbers:
    """At the embedded engine."""
    rounds, times = (1, 2) if quick else (6, 6)
    async with embedded(slots=SLOTS, context=256) as engine:
        return told(await compare(engine, slots=SLOTS, lengths=LENGTHS * times, rounds=rounds))
