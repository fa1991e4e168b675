"""What stands between vLLM's token and ours: the engine for compatible servers beside a bare client, and vLLM in the
process. Takes some minutes and vLLM's own environment: `.venvs/vllm/bin/python -m bench.vllm_path [ROUNDS]`.

The model is random and tiny, so that what is measured is everything but the model. Who is measured changes with every
request, and who comes first with every pair, so that what else the machine does is everybody's. A difference is made
within a pair; the median of each round is taken, and told are the median of the rounds and how far apart they are. The
exit code is 1 if a goal is missed.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median, quantiles

import aiohttp

from bench.report import machine
from bench.rivals import ROOT
from headrace.engine.openai.engine import OpenAIEngine
from headrace.engine.openai.request import completion_body
from headrace.engine.port import Engine, ModelRequest, Text
from headrace.engine.presets import VLLM
from headrace.engine.vllm.inprocess import VllmEngine
from headrace.messages import Message

sys.path.append(str(ROOT / "tests"))

from tiny_model import learning_text, make_tiny_model
from vllm_server import CONTEXT, ENVIRONMENT, SLOTS, VllmServer, vllm_server

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


def show(name: str, taken: list[Timed]) -> None:
    firsts, totals = ([timed[part] for timed in taken] for part in (0, 1))
    p95 = quantiles(firsts, n=20)[18]
    print(f"{name:28} first token p50 {median(firsts):6.2f} ms, p95 {p95:6.2f} ms; {median(totals):7.2f} ms in all")


def told(name: str, rounds: list[float], *, most: float | None = None) -> bool:
    """Print the median of the rounds; False if it is more than it should be."""
    value = median(rounds)
    wanted = "" if most is None else f", wanted ≤ {most:g}: {'met' if value <= most else 'MISSED'}"
    print(f"{name:28} p50 {value:.2f} ms [{min(rounds):.2f}, {max(rounds):.2f}]{wanted}")
    return most is None or value <= most


async def over_http(server: VllmServer, rounds: int) -> bool:
    async with aiohttp.ClientSession() as session, OpenAIEngine(server.url, model="tiny", capabilities=None) as engine:

        def ask(turns: int) -> Awaitable[dict[str, list[Timed]]]:
            return interleaved(turns, by_hand=lambda: by_hand(session, server.url), by_engine=lambda: by_engine(engine))

        await ask(WARM)
        taken = [await ask(PAIRS) for _ in range(rounds)]
        freed = [await until_freed(engine, lambda: server.busy) for _ in range(rounds * LEAVES)]
    show("bare client", [timed for one in taken for timed in one["by_hand"]])
    show("OpenAIEngine", [timed for one in taken for timed in one["by_engine"]])
    added = [median(ours[0] - bare[0] for bare, ours in zip(*one.values(), strict=True)) for one in taken]
    met = told("added to the first token", added, most=MOST_ADDED_MS)
    return told("freed after leaving", freed, most=MOST_FREED_MS) and met


async def in_process(model: Path, rounds: int) -> bool:
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
    show("VllmEngine, in the process", taken["engine"])
    met = told("freed after leaving", freed, most=MOST_FREED_MS)
    told("loop blocked, 8 streams", blocked)
    return met


def main(rounds: int) -> int:
    os.environ.update(ENVIRONMENT)
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model(Path(folder) / "tiny", text=learning_text())
        with vllm_server(model, Path(folder) / "log") as server:
            met = asyncio.run(over_http(server, rounds))
        met = asyncio.run(in_process(model, rounds)) and met
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5))
