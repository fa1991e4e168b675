"""What stands between vLLM's token and ours: the engine for compatible servers beside a bare client, and vLLM in the
process. Takes some minutes and vLLM's own environment: `.venvs/vllm/bin/python -m bench.vllm_path [ROUNDS]`.

The model is random and tiny, so that what is measured is everything but the model. Who is measured changes with every
request, and who comes first with every pair, so that what else the machine does is everybody's. A difference is made
within a pair; the median of each round is taken, and told are the median of the rounds and how far apart they are. The
exit code is 1 if a goal is missed.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median, quantiles

import aiohttp

from bench.report import host, versions
from bench.rivals import ROOT
from bench.telling import Telling
from headrace.engine.openai.engine import OpenAIEngine
from headrace.engine.openai.request import completion_body
from headrace.engine.port import Engine, ModelRequest, Text
from headrace.engine.presets import VLLM
from headrace.engine.vllm.inprocess import VllmEngine
from headrace.messages import Message

sys.path.append(str(ROOT / "tests"))

from tiny_model import learning_text, make_tiny_model
from vllm_server import CONTEXT, ENVIRONMENT, SLOTS, VllmServer, vllm_server

COMMAND = ".venvs/vllm/bin/python -m bench.vllm_path"
REQUEST = ModelRequest(messages=(Message(role="user", content="Say a few words."),), max_tokens=32, temperature=0.0)
LONG = ModelRequest(messages=REQUEST.messages, max_tokens=1000, extra={"ignore_eos": True})
WARM = 10
PAIRS = 40
"""In a round."""

LEAVES = 5
"""Streams that are left in a round."""

MOST_ADDED_MS, MOST_FREED_MS = 3.0, 200.0

Timed = tuple[float, float]
"""Milliseconds until the first text, and until the end."""


async def by_engine(engine: Engine) -> Timed:
    began, first = time.perf_counter(), 0.0
    async with engine.stream(REQUEST) as chunks:
        async for chunk in chunks:
            if not first and isinstance(chunk, Text):
                first = time.perf_counter()
    return (first - began) * 1e3, (time.perf_counter() - began) * 1e3


async def by_hand(session: aiohttp.ClientSession, url: str) -> Timed:
    """As little as a client can do: it reads lines and looks for the first that holds text."""
    body = completion_body(REQUEST, model="tiny", spelling=VLLM.spelling)
    began, first = time.perf_counter(), 0.0
    async with session.post(f"{url}/chat/completions", json=body) as answer:
        async for line in answer.content:
            if not first and b'"content":"' in line and b'"content":""' not in line:
                first = time.perf_counter()
    return (first - began) * 1e3, (time.perf_counter() - began) * 1e3


async def interleaved(turns: int, **takes: Callable[[], Awaitable[Timed]]) -> dict[str, list[Timed]]:
    """What comes first in one turn comes last in the next."""
    taken: dict[str, list[Timed]] = {name: [] for name in takes}
    for turn in range(turns):
        for name in list(takes) if turn % 2 else reversed(takes):
            taken[name].append(await takes[name]())
    return taken


async def worst_block(engine: Engine, streams: int = 8) -> float:
    """Milliseconds that the loop's own thread computes between two ticks while so many answers stream, at most."""

    async def read() -> None:
        async with engine.stream(ModelRequest(messages=LONG.messages, max_tokens=100)) as chunks:
            async for _ in chunks:
                pass

    readers, worst = [asyncio.ensure_future(read()) for _ in range(streams)], 0.0
    while not all(reader.done() for reader in readers):
        before = time.thread_time()
        await asyncio.sleep(0)
        worst = max(worst, time.thread_time() - before)
    return worst * 1e3


async def until_freed(engine: Engine, busy: Callable[[], int]) -> float:
    """Milliseconds from leaving a stream until vLLM's own metrics count no request."""
    async with engine.stream(LONG) as chunks:
        await anext(chunks)
        while not await asyncio.to_thread(busy):
            pass
        left = time.perf_counter()
    while await asyncio.to_thread(busy):
        pass
    return (time.perf_counter() - left) * 1e3


def show(tell: Telling, name: str, taken: list[Timed]) -> None:
    firsts, totals = ([timed[part] for timed in taken] for part in (0, 1))
    p95 = quantiles(firsts, n=20)[18]
    tell(f"| {name}: first token, p50 and p95 | {median(firsts):.2f} and {p95:.2f} | | |")
    tell(f"| {name}: whole answer, p50 | {median(totals):.2f} | | |")


def rate(tell: Telling, name: str, rounds: list[float], *, most: float | None = None) -> bool:
    """Tell the median of the rounds; False if it is more than it should be."""
    value = median(rounds)
    wanted, verdict = ("", "") if most is None else (f"≤ {most:g}", "met" if value <= most else "**missed**")
    tell(f"| {name}, p50 | {value:.2f} [{min(rounds):.2f}, {max(rounds):.2f}] | {wanted} | {verdict} |")
    return most is None or value <= most


async def over_http(server: VllmServer, rounds: int, tell: Telling) -> bool:
    async with aiohttp.ClientSession() as session, OpenAIEngine(server.url, model="tiny", capabilities=None) as engine:

        def ask(turns: int) -> Awaitable[dict[str, list[Timed]]]:
            return interleaved(turns, by_hand=lambda: by_hand(session, server.url), by_engine=lambda: by_engine(engine))

        await ask(WARM)
        taken = [await ask(PAIRS) for _ in range(rounds)]

        def busy() -> int:
            return int(server.metric("num_requests_running|num_requests_waiting"))

        freed = [await until_freed(engine, busy) for _ in range(rounds * LEAVES)]
    show(tell, "a bare client", [timed for one in taken for timed in one["by_hand"]])
    show(tell, "Headrace's engine", [timed for one in taken for timed in one["by_engine"]])
    added = [median(ours[0] - bare[0] for bare, ours in zip(*one.values(), strict=True)) for one in taken]
    met = rate(tell, "added to the first token", added, most=MOST_ADDED_MS)
    return rate(tell, "over HTTP: freed after a stream was left", freed, most=MOST_FREED_MS) and met


async def in_process(model: Path, rounds: int, tell: Telling) -> bool:
    from prometheus_client import REGISTRY

    def busy() -> int:
        samples = [sample for metric in REGISTRY.collect() for sample in metric.samples]
        return int(sum(sample.value for sample in samples if sample.name == "vllm:num_requests_running"))

    options = {"enforce_eager": True, "dtype": "float32"}
    async with VllmEngine(model, slots=SLOTS, context=CONTEXT, options=options) as engine:
        await interleaved(WARM, engine=lambda: by_engine(engine))
        taken = await interleaved(rounds * PAIRS, engine=lambda: by_engine(engine))
        freed = [await until_freed(engine, busy) for _ in range(rounds * LEAVES)]
        blocked = [await worst_block(engine) for _ in range(rounds)]
    show(tell, "vLLM in the process", taken["engine"])
    met = rate(tell, "in the process: freed after a stream was left", freed, most=MOST_FREED_MS)
    rate(tell, "in the process: loop held up by 8 streams, worst of a round", blocked)
    return met


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.vllm_path", description=__doc__)
    parser.add_argument("rounds", type=int, nargs="?", default=5)
    parser.add_argument("--write", action="store_true", help="put what is told into bench/RESULTS.md")
    given = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    tell = Telling("vLLM's path", COMMAND)
    tell(
        f"{host()} {versions(('headrace', 'vllm'))}\n\n| ms | measured, median [rounds] | wanted | |\n|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model(Path(folder) / "tiny", text=learning_text())
        with vllm_server(model, Path(folder) / "log") as server:
            met = asyncio.run(over_http(server, given.rounds, tell))
        met = asyncio.run(in_process(model, given.rounds, tell)) and met
    if given.write:
        tell.write("vLLM's path")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
