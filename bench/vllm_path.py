"""What stands between vLLM's token and ours: the engine for compatible servers beside a bare client, and vLLM in the
process. Takes some minutes and vLLM's own environment: `.venvs/vllm/bin/python -m bench.vllm_path [ROUNDS]`.

The model is random and tiny, so that what is measured is everything but the model. Who is measured changes with every
request, and who comes first with every pair, so that what else the machine does is everybody's. A difference is made
within a pair; the median of each round is taken, and told are the median of the rounds and how far apart they are. In
each round vLLM is started anew, first as a server and then in the process: one start differs from the next by a tenth.
The exit code is 1 if a goal is missed.
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
import msgspec

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
    """Milliseconds from leaving a stream until vLLM's own metrics count no request, or until nobody waits any more.
    Raises RuntimeError if they never counted it: now and then vLLM's server says for seconds what was."""
    for _ in range(5):
        async with engine.stream(LONG) as chunks:
            await anext(chunks)
            counted = await _within(2.0, lambda: busy() > 0)
            left = time.perf_counter()
        await _within(20.0, lambda: busy() == 0)
        if counted:
            return (time.perf_counter() - left) * 1e3
    raise RuntimeError("vLLM's metrics do not count its requests")


async def _within(seconds: float, true: Callable[[], bool]) -> bool:
    """Whether it becomes true meanwhile."""
    deadline = time.perf_counter() + seconds
    while not await asyncio.to_thread(true):
        if time.perf_counter() > deadline:
            return False
    return True


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


class Round(msgspec.Struct):
    """What one start of vLLM gave, milliseconds."""

    taken: dict[str, list[Timed]]
    freed: list[float]
    blocked: float = 0.0

    def first(self, name: str) -> float:
        return median(first for first, _ in self.taken[name])

    def total(self, name: str) -> float:
        return median(total for _, total in self.taken[name])


async def over_http(server: VllmServer) -> Round:
    async with aiohttp.ClientSession() as session, OpenAIEngine(server.url, model="tiny", capabilities=None) as engine:

        def ask(turns: int) -> Awaitable[dict[str, list[Timed]]]:
            return interleaved(turns, bare=lambda: by_hand(session, server.url), engine=lambda: by_engine(engine))

        def busy() -> int:
            return int(server.metric("num_requests_running|num_requests_waiting"))

        await ask(WARM)
        return Round(await ask(PAIRS), [await until_freed(engine, busy) for _ in range(LEAVES)])


async def in_process(model: Path) -> Round:
    from prometheus_client import REGISTRY

    def busy() -> int:
        samples = [sample for metric in REGISTRY.collect() for sample in metric.samples]
        return int(sum(sample.value for sample in samples if sample.name == "vllm:num_requests_running"))

    options = {"enforce_eager": True, "dtype": "float32"}
    async with VllmEngine(model, slots=SLOTS, context=CONTEXT, options=options) as engine:

        def ask(turns: int) -> Awaitable[dict[str, list[Timed]]]:
            return interleaved(turns, engine=lambda: by_engine(engine))

        await ask(WARM)
        taken = await ask(PAIRS)
        freed = [await until_freed(engine, busy) for _ in range(LEAVES)]
        return Round(taken, freed, await worst_block(engine))


def judge(tell: Telling, http: list[Round], within: list[Round]) -> bool:
    """False if a goal is missed."""
    show(tell, "a bare client", [timed for one in http for timed in one.taken["bare"]])
    show(tell, "Headrace's engine", [timed for one in http for timed in one.taken["engine"]])
    show(tell, "vLLM in the process", [timed for one in within for timed in one.taken["engine"]])
    pairs = [zip(one.taken["bare"], one.taken["engine"], strict=True) for one in http]
    added = [median(ours[0] - bare[0] for bare, ours in pair) for pair in pairs]
    both = list(zip(http, within, strict=True))
    goals = (
        rate(tell, "added to the first token", added, most=MOST_ADDED_MS),
        rate(
            tell,
            "over HTTP: freed after a stream was left",
            [median(one.freed) for one in http],
            most=MOST_FREED_MS,
        ),
        rate(
            tell,
            "in the process: freed after a stream was left",
            [median(one.freed) for one in within],
            most=MOST_FREED_MS,
        ),
        rate(
            tell,
            "in the process over HTTP, first token, ratio",
            [b.first("engine") / a.first("engine") for a, b in both],
            most=1,
        ),
        rate(
            tell,
            "in the process over HTTP, whole answer, ratio",
            [b.total("engine") / a.total("engine") for a, b in both],
            most=1,
        ),
    )
    rate(tell, "in the process: loop held up by 8 streams, worst of a round", [one.blocked for one in within])
    return all(goals)


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
    http, within = [], []
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model(Path(folder) / "tiny", text=learning_text())
        for _ in range(given.rounds):
            with vllm_server(model, Path(folder) / "log") as server:
                http.append(asyncio.run(over_http(server)))
            within.append(asyncio.run(in_process(model)))
    met = judge(tell, http, within)
    if given.write:
        tell.write("vLLM's path")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
