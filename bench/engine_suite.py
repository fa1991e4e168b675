"""What `scripts/bench engines` measures itself, in this order, and what Headrace wants to reach."""

from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from bench import (
    batching,
    engine_batches,
    engine_choices,
    engine_measures,
    engine_served,
    engine_threads,
    loop_lag,
    openvino_path,
)
from bench.engine_measures import Numbers


class Measure(msgspec.Struct, frozen=True):
    """It takes about so many `minutes` on a quiet machine of two cores. `note` is told with its numbers: units, and
    what one must know to read them."""

    title: str
    take: Callable[[bool], Awaitable[Numbers]]
    minutes: float
    note: str = ""


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """`most` or `least` bounds a number of a measure."""

    text: str
    measure: str
    number: str
    most: float | None = None
    least: float | None = None

    @property
    def wanted(self) -> str:
        return f"≤ {self.most:g}" if self.most is not None else f"≥ {self.least:g}"

    def met(self, value: float) -> bool:
        return (self.most is None or value <= self.most) and (self.least is None or value >= self.least)


def _beside(quick: bool, *, streams: int, rounds: int) -> Awaitable[Numbers]:
    return engine_served.measure(streams, 1 if quick else rounds)


_TAKES = "Times to the first token in milliseconds, tokens by the engine's own count, each text new to every cache."
_SPREAD = "Medians of the takes, and [the least and the most]; ratios are made within a take."

# fmt: off
MEASURES = {
    "served_1": Measure(
        "1 stream: Headrace beside its engine driven directly", partial(_beside, streams=1, rounds=41), 1
    ),
    "served_16": Measure("16 streams", partial(_beside, streams=16, rounds=5), 1),
    "served_50": Measure("50 streams at 16 slots", partial(_beside, streams=50, rounds=3), 2),
    "long_prompt": Measure("a 2,000-token prompt arrives beside 8 streams", engine_measures.long_prompt, 1.5),
    "long_prompts": Measure("eight prompts of 1,800 tokens arrive beside one stream", engine_batches.long_prompts, 2.5),
    "batches": Measure("tokens in one step", engine_batches.batches, 4),
    "batching": Measure(
        "answers of mixed length, admitted as places become free and in static batches", batching.batching, 3,
        "Rates are medians of the rounds, both ways in turns, and [the least and the most]; the ratio is made within a "
        "round. Times to the first token are those of all requests of all rounds, in milliseconds, waiting included.",
    ),
    "prefix": Measure(
        "second turn of a thread of 1,000 tokens and more", engine_measures.prefix, 1,
        f"{_TAKES} {_SPREAD} What the chat template puts before every text is cached for the first turn too.",
    ),
    "restore": Measure(
        "the engine dies in an answer behind 1,000 tokens and more", engine_measures.restore, 2.5,
        f"{_TAKES} {_SPREAD} Reading the saved state is in the time, starting the process again is in neither.",
    ),
    "snapshots": Measure("what saving the state costs", engine_choices.snapshots, 1, _SPREAD),
    "cache_types": Measure("type of the KV cache", engine_choices.cache_types, 3),
    "guessing": Measure("n-gram guesses", engine_choices.guessing, 1, f"Tokens/s of one stream. {_SPREAD}"),
    "openvino": Measure("OpenVINO beside its library driven by hand, 16 streams", openvino_path.measure, 1),
    "threads": Measure("threads, alone and beside other work on every core", engine_threads.threads, 1.5),
    "loop_lag_served": Measure(
        "lag of a Headrace server's event loop while 8 runs stream over HTTP", loop_lag.in_a_server, 1,
        "Milliseconds. The server looks at its own loop every 2 ms; client, server and model share all cores. "
        "`busy_waited` is the longest time in line for a core, `busy_computed` the most that the loop's thread "
        "computed between two looks; uvloop's timers may be late by up to 1 ms with nobody to blame.",
    ),
    "loop_lag": Measure(
        "lag of a program's event loop beside 8 answers of the engine in it", loop_lag.in_a_program, 0.5,
        "Milliseconds, as in `loop_lag_served`, but the loop is the bench's own: there is no server and no client.",
    ),
}
GOALS = (
    Goal(text="total time, 1 stream, ratio", measure="served_1", number="total_ratio", most=1.05),
    Goal(text="first token, 1 stream, added ms", measure="served_1", number="first_added_ms", most=3),
    Goal(text="tokens/s, 16 streams, ratio", measure="served_16", number="rate_ratio", least=0.95),
    Goal(text="tokens/s, 50 streams, ratio", measure="served_50", number="rate_ratio", least=0.95),
    Goal(text="gap p99, 16 streams, ratio", measure="served_16", number="gap_p99_ratio", most=1.3),
    Goal(text="gap p99, 50 streams, ratio", measure="served_50", number="gap_p99_ratio", most=1.3),
    Goal(text="gap p99 while a long prompt is read, ratio", measure="long_prompt", number="gap_p99_ratio", most=3),
    Goal(text="second turn over the cold one", measure="prefix", number="second_over_cold", most=0.2),
    Goal(text="recomputing over restoring", measure="restore", number="recomputed_over_restored", least=3),
    Goal(text="KV memory, q8_0 over f16", measure="cache_types", number="q8_0_over_f16", most=0.55),
    Goal(text="KV q8_0, perplexity over f16's", measure="cache_types", number="q8_0_perplexity_ratio", most=1.01),
    Goal(text="OpenVINO, tokens/s, 16 streams, ratio", measure="openvino", number="rate_ratio", least=0.95),
    Goal(text="OpenVINO, gap p99, 16 streams, ratio", measure="openvino", number="gap_p99_ratio", most=1.3),
    Goal(text="lag of a server's loop, worst ms", measure="loop_lag_served", number="busy_worst", most=10),
    Goal(text="lag of a program's loop, worst ms", measure="loop_lag", number="busy_worst", most=10),
)
# fmt: on
