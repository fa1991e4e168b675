"""Continuous against static batching: the same requests of mixed length at the same engine, once admitted whenever a
place becomes free, once in batches that start together and wait for their longest answer.

    python -m bench.batching            # the embedded engine, 8 slots
    python -m bench.batching --quick
    python -m bench.batching --write    # into its region of RESULTS.md too
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Sequence

import msgspec

from bench.report import host
from bench.telling import Telling
from headrace.engine import models
from headrace.engine.llamacpp.engine import LlamaCppEngine
from headrace.engine.port import Engine, Finish, ModelRequest
from headrace.engine.static_batches import StaticBatches

LENGTHS = (8, 16, 8, 96, 24, 8, 48, 16)
"""Tokens of the answers, over and over: most are short, a few are long."""
SLOTS = 8
COMMAND = "python -m bench.batching"
APART = 0.02  # seconds between two requests


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """`first` are milliseconds from asking to the first token, sorted."""

    tokens_per_s: float
    first: tuple[float, ...]

    def first_at(self, percent: int) -> float:
        return self.first[min(len(self.first) - 1, len(self.first) * percent // 100)]


async def measure(engine: Engine, requests: Sequence[ModelRequest]) -> Outcome:
    """All requests, one a moment after the other, to the end of the last answer."""
    began = time.perf_counter()

    async def answer(number: int, request: ModelRequest) -> Finish:
        await asyncio.sleep(number * APART)
        async with engine.stream(request) as chunks:
            async for chunk in chunks:
                if isinstance(chunk, Finish):
                    return chunk
        raise RuntimeError("an answer had no end")

    ends = await asyncio.gather(*(answer(number, request) for number, request in enumerate(requests)))
    tokens = sum(end.usage.output_tokens for end in ends)
    first = sorted(end.timing.first_token_ms or 0.0 for end in ends)
    return Outcome(tokens_per_s=tokens / (time.perf_counter() - began), first=tuple(first))


def requests_of(lengths: Sequence[int]) -> list[ModelRequest]:
    """One for each length, all with different prompts, which the model may not end before."""
    return [
        ModelRequest(
            prompt=f"Story number {number}. Once upon a time",
            max_tokens=length,
            temperature=0.0,
            extra={"ignore_eos": True},
        )
        for number, length in enumerate(lengths)
    ]


async def compare(engine: Engine, *, slots: int, lengths: Sequence[int]) -> dict[str, Outcome]:
    """Both ways, after one round that nobody counts. `slots` is how many answers the engine gives at once."""
    await measure(engine, requests_of(lengths[:slots]))
    return {
        "continuous": await measure(engine, requests_of(lengths)),
        "static": await measure(StaticBatches(engine, size=slots, wait=slots * APART), requests_of(lengths)),
    }


def table(outcomes: dict[str, Outcome]) -> str:
    rows = ["| batching | tokens/s | first token p50 | p95 |", "|---|---|---|---|"]
    rows += [
        f"| {name} | {one.tokens_per_s:.0f} | {statistics.median(one.first):.0f} ms | {one.first_at(95):.0f} ms |"
        for name, one in outcomes.items()
    ]
    ratio = outcomes["continuous"].tokens_per_s / outcomes["static"].tokens_per_s
    return "\n".join([*rows, "", f"Continuous batching gives {ratio:.2f}x the tokens of static batching."])


async def embedded(lengths: Sequence[int]) -> dict[str, Outcome] | None:
    """At the embedded engine, None if it has no model."""
    path = models.installed("smollm2")
    if path is None:
        return None
    async with LlamaCppEngine(path, slots=SLOTS, context=256) as engine:
        return await compare(engine, slots=SLOTS, lengths=lengths)


def main() -> int:
    parser = argparse.ArgumentParser(description="Continuous against static batching at the embedded engine.")
    parser.add_argument("--quick", action="store_true", help="fewer requests")
    parser.add_argument("--write", action="store_true", help="put the table into bench/RESULTS.md")
    options = parser.parse_args()
    rounds = 3 if options.quick else 8
    outcomes = asyncio.run(embedded(LENGTHS * rounds))
    if outcomes is None:
        print("The model is not installed: headrace models install smollm2", file=sys.stderr)
        return 1
    tell = Telling("answers of mixed length, admitted as places become free and in static batches", COMMAND)
    tell(f"{host()}\n\n{table(outcomes)}")
    if options.write:
        tell.write("batching")
    return 0


if __name__ == "__main__":
    sys.exit(main())
