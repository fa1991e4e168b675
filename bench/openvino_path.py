"""What stands between OpenVINO's token and ours: the embedded engine beside its library, driven by hand, with the same
settings, in a process that does nothing else.

    python -m bench.openvino_path           # 1, 8, 16 and 32 streams, three rounds
    python -m bench.openvino_path --quick   # one round of 8 streams
    python -m bench.openvino_path --write   # into its region of RESULTS.md too

Who is measured changes with every round, so that what else the machine does is everybody's.
"""

import argparse
import asyncio
import os
import sys
import time
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from bench.report import host
from bench.telling import Telling
from headrace.engine import models
from headrace.engine.openvino.engine import OpenVinoEngine
from headrace.engine.openvino.parameters import OpenVinoParameters
from headrace.engine.port import Finish, ModelRequest, Text
from headrace.engine.stepped.lines import Generate, Sampling

if TYPE_CHECKING:
    from headrace.engine.openvino.model import OpenVinoModel

SLOTS, CONTEXT, TOKENS = 32, 512, 64
PROMPT = "Story number {}. Once upon a time"
SHAPE = 'root ::= (" " [a-z]{1,12}){300}'
"""So that no answer ends before it has all its tokens."""


class Round(msgspec.Struct, frozen=True):
    """Tokens per second of all streams together, and milliseconds: to the first token (median), between two (p99)."""

    rate: float
    first: float
    gap: float


def outcome(began: float, times: list[list[float]], tokens: int) -> Round:
    """`times` are when each stream's pieces came."""
    ended = max(stream[-1] for stream in times)
    gaps = sorted(after - before for stream in times for before, after in pairwise(stream))
    return Round(
        rate=tokens / (ended - began),
        first=median(stream[0] - began for stream in times) * 1e3,
        gap=gaps[len(gaps) * 99 // 100] * 1e3,
    )


async def by_engine(engine: OpenVinoEngine, streams: int) -> Round:
    times: list[list[float]] = [[] for _ in range(streams)]

    async def answer(number: int) -> int:
        request = ModelRequest(prompt=PROMPT.format(number), grammar=SHAPE, max_tokens=TOKENS, temperature=0.0)
        async with engine.stream(request) as chunks:
            async for chunk in chunks:
                if isinstance(chunk, Text):
                    times[number].append(time.perf_counter())
                elif isinstance(chunk, Finish):
                    return chunk.usage.output_tokens
        raise RuntimeError("an answer had no end")

    began = time.perf_counter()
    tokens = await asyncio.gather(*(answer(number) for number in range(streams)))
    return outcome(began, times, sum(tokens))


def by_hand() -> None:
    """The other process: for each number of streams on stdin, a `Round` on stdout."""
    from headrace.engine.openvino.model import OpenVinoModel

    report = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    model = OpenVinoModel(msgspec.json.decode(sys.stdin.buffer.readline(), type=OpenVinoParameters))
    for line in sys.stdin.buffer:
        report.write(msgspec.json.encode(_stepped(model, int(line))) + b"\n")


def _stepped(model: "OpenVinoModel", streams: int) -> Round:
    times: list[list[float]] = [[] for _ in range(streams)]
    tokens, running = 0, set(range(streams))
    requests = [
        Generate(id=number, prompt=PROMPT.format(number), sampling=Sampling(temperature=0.0, grammar=SHAPE))
        for number in range(streams)
    ]
    began = time.perf_counter()
    answers = [model.add(model.tokens(request), request, max_tokens=TOKENS) for request in requests]
    while running:
        model.step()
        for number in tuple(running):
            ids, reason = answers[number].read()
            tokens += len(ids)
            if ids:
                times[number].append(time.perf_counter())
            if reason is not None:
                running.discard(number)
    return outcome(began, times, tokens)


async def compare(counts: tuple[int, ...], rounds: int) -> dict[tuple[str, int], list[Round]]:
    """Everybody once with each number of streams, then again; the first round warms up and is not counted."""
    taken: dict[tuple[str, int], list[Round]] = {}
    engine = OpenVinoEngine(models.model_path("smollm2"), slots=SLOTS, context=CONTEXT)
    async with engine:
        other = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.openvino_path", "--by-hand"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdin.write(msgspec.json.encode(engine.parameters()) + b"\n")
        for turn in range(rounds + 1):
            for streams in counts:
                ours = await by_engine(engine, streams)
                other.stdin.write(b"%d\n" % streams)
                theirs = msgspec.json.decode(await other.stdout.readline(), type=Round)
                if turn:
                    taken.setdefault(("Headrace", streams), []).append(ours)
                    taken.setdefault(("by hand", streams), []).append(theirs)
        other.stdin.close()
        await other.wait()
    return taken


async def measure(quick: bool) -> dict[str, float]:
    """For `scripts/bench engines`: 16 streams, and the ratios within each round."""
    taken = await compare((16,), 1 if quick else 5)
    rounds = list(zip(taken["Headrace", 16], taken["by hand", 16], strict=True))
    return {
        "rate": median(ours.rate for ours, _ in rounds),
        "rate_ratio": median(ours.rate / theirs.rate for ours, theirs in rounds),
        "first_added_ms": median(ours.first - theirs.first for ours, theirs in rounds),
        "gap_p99_ratio": median(ours.gap / theirs.gap for ours, theirs in rounds),
    }


def table(taken: dict[tuple[str, int], list[Round]]) -> str:
    rows = ["| streams | who | tokens/s | first token p50 | gap p99 |", "|---|---|---|---|---|"]
    for (who, streams), rounds in sorted(taken.items(), key=lambda entry: (entry[0][1], entry[0][0])):
        rate, first, gap = (median(getattr(one, part) for one in rounds) for part in ("rate", "first", "gap"))
        rows.append(f"| {streams} | {who} | {rate:.0f} | {first:.0f} ms | {gap:.0f} ms |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description="The OpenVINO engine beside its library, driven by hand.")
    parser.add_argument("--quick", action="store_true", help="one round of 8 streams")
    parser.add_argument("--write", action="store_true", help="put the table into bench/RESULTS.md")
    parser.add_argument("--by-hand", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.by_hand:
        by_hand()
        return 0
    if models.installed("smollm2") is None:
        print("The model is not installed: headrace models install smollm2", file=sys.stderr)
        return 1
    counts, rounds = ((8,), 1) if options.quick else ((1, 8, 16, 32), 3)
    tell = Telling("OpenVINO beside its library, driven by hand", "python -m bench.openvino_path")
    tell(f"{host()}\n\n{table(asyncio.run(compare(counts, rounds)))}")
    if options.write:
        tell.write("openvino_path")
    return 0


if __name__ == "__main__":
    sys.exit(main())
