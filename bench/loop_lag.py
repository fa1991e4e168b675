"""How late an event loop is while the embedded model answers: the loop of a Headrace server, and that of a program
which has the engine in it.

The server looks at its own loop, in its own process (`loop_probe.py`): `engine_app.py` starts that where `BENCH_LOOKS`
names a file, and SIGUSR1 has it written. Of its looks only those between two moments are counted, so that nothing of
its start is. (Its clock is ours: time.perf_counter is one for all processes of a Linux machine.)
"""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from statistics import quantiles

import aiohttp
import msgspec

from bench.contestants import Serving
from bench.engine_measures import Numbers, asked, embedded, spread, timed
from bench.engine_served import crowd, one_engine, through_headrace
from bench.loop_probe import LOOKS, Look, LoopProbe

RUNS = 8
BLOCKED_MS = 10.0

_FILE = "looks.json"
_WRITTEN_WITHIN = 10.0  # seconds


async def in_a_program(quick: bool) -> Numbers:
    """Eight answers at once from an engine in this process. Eight others come first: on a virtual machine that gives
    back idle memory, the first turn after a pause takes tens of milliseconds by itself."""
    async with embedded(slots=RUNS, context=256) as engine:
        rest = await _looks_during(lambda: asyncio.sleep(1.0 if quick else 5.0))
        await asyncio.gather(*(timed(engine, asked(f"Warm {number}", 2)) for number in range(RUNS)))
        answers = [asked(f"Story {number}. Once", 24 if quick else 128) for number in range(RUNS)]
        busy = await _looks_during(lambda: asyncio.gather(*(timed(engine, answer) for answer in answers)))
    return numbers(rest, busy)


async def in_a_server(quick: bool) -> Numbers:
    """Eight runs at once, streamed over HTTP to this process, by a server that has the engine; several times over. The
    first eight are not counted."""
    rounds, tokens, rest_s = (1, 24, 1.0) if quick else (5, 128, 5.0)
    async with one_engine(settings={LOOKS: f"{{DATA}}/{_FILE}"}) as (server, _), aiohttp.ClientSession() as http:
        await crowd(through_headrace(http, server.port, tokens=8), RUNS)
        rested = await _between(lambda: asyncio.sleep(rest_s))
        stream = through_headrace(http, server.port, tokens=tokens)
        worked = [await _between(lambda: crowd(stream, RUNS)) for _ in range(rounds)]
        looks = await _looks_of(server)
    rest, *busy = [[look for look in looks if begun <= look.at <= ended] for begun, ended in (rested, *worked)]
    return {
        "rounds": rounds,
        "runs_at_once": RUNS,
        **numbers(rest, [look for one in busy for look in one]),
        **spread("busy_worst_of_a_round", [max(look.late for look in one) for one in busy]),
    }


def numbers(rest: list[Look], busy: list[Look]) -> Numbers:
    """Milliseconds, and counts. Of `busy` too: the longest time in line for a core, and the most that was computed
    between two looks. Raises ValueError if there are too few looks to tell."""
    if len(rest) < 2 or len(busy) < 2:
        raise ValueError(f"{len(rest)} looks at the loop at rest and {len(busy)} at work: the probe did not run")
    late = [look.late for look in busy]
    percentiles = quantiles(late, n=100)
    return {
        "rest_p99": quantiles([look.late for look in rest], n=100)[98],
        "rest_worst": max(look.late for look in rest),
        "busy_looks": len(busy),
        "busy_p50": percentiles[49],
        "busy_p99": percentiles[98],
        "busy_worst": max(late),
        "busy_over_10_ms": sum(one > BLOCKED_MS for one in late),
        "busy_waited": max(look.waited for look in busy),
        "busy_computed": max(look.computed for look in busy),
    }


async def _between(work: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """When it began and ended."""
    begun = time.perf_counter()
    await work()
    return begun, time.perf_counter()


async def _looks_during(work: Callable[[], Awaitable[object]]) -> list[Look]:
    with LoopProbe() as probe:
        await work()
        return probe.looks


async def _looks_of(server: Serving) -> list[Look]:
    path = server.folder / _FILE
    os.kill(server.pid, signal.SIGUSR1)
    async with asyncio.timeout(_WRITTEN_WITHIN):
        while not path.exists():  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.05)
    return msgspec.json.decode(path.read_bytes(), type=list[Look])
