"""What users of the demo get: the real agent and the embedded model, asked by 1, 4, 16 and 50 people at once.

Every user asks several questions, one after the other. Times count from sending the request: `event` to the first
visible event, `first` to the first text. The questions are the demo's own, and 1 and 4 users ask new ones: what
the engine has read before is no measure of it. The first answers begin as soon as the server listens.
"""

import asyncio
import itertools
import sys
import time
from collections.abc import Iterator
from statistics import median, quantiles

import aiohttp
import msgspec

from bench.contestants import Contestant, serving
from headrace.demo.grade import load_questions
from headrace.wire.sse import SSEDecoder

QUESTIONS_EACH = {1: 8, 4: 8, 16: 2, 50: 2}
"""How many a user asks, by how many users there are."""


class Seen(msgspec.Struct):
    """One answer: seconds until the first event, the first text and the end; tokens are the engine's own count."""

    event: float
    first: float
    total: float
    tokens: int


def demo() -> Contestant:
    command = (sys.executable, "-m", "headrace.cli", "serve")
    places = {"HEADRACE_SERVER__PORT": "{PORT}", "HEADRACE_LOG__PATH": "{DATA}/store"}
    return Contestant(name="demo", command=command, settings=places, all_cores=True)


async def ask(http: aiohttp.ClientSession, url: str, question: str) -> Seen:
    begun = time.perf_counter()
    event = first = 0.0
    tokens = 0
    decoder = SSEDecoder()
    async with http.post(url, json={"input": question}, headers={"accept": "text/event-stream"}) as answer:
        async for piece in answer.content.iter_any():
            now = time.perf_counter() - begun
            for frame in decoder.feed(piece):
                event = event or now
                if frame.event == "text.delta":
                    first = first or now
                elif frame.event == "turn.finished":
                    tokens += msgspec.json.decode(frame.data).get("usage", {}).get("output_tokens", 0)
    total = time.perf_counter() - begun
    return Seen(event, first or total, total, tokens)


def questions() -> Iterator[str]:
    return itertools.cycle([q.question for q in load_questions() if q.lang == "en" and q.answerable])


async def crowd(url: str, users: int, asked: Iterator[str]) -> list[Seen]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

        async def user() -> list[Seen]:
            return [await ask(http, url, next(asked)) for _ in range(QUESTIONS_EACH[users])]

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(user()) for _ in range(users)]
    return [seen for task in tasks for seen in task.result()]


def row(users: int, seen: list[Seen]) -> str:
    firsts = [s.first * 1e3 for s in seen]
    late = quantiles(firsts, n=100)[98] if len(firsts) > 2 else max(firsts)
    rates = [s.tokens / (s.total - s.first) for s in seen if s.tokens > 1 and s.total > s.first]
    rate = f"{median(rates):.1f}" if rates else "-"
    event = median(s.event * 1e3 for s in seen)
    whole = median(s.total for s in seen)
    return f"| {users} | {event:.0f} | {median(firsts):.0f} | {late:.0f} | {rate} | {whole:.1f} |"


def main() -> int:
    print(
        "| users at once | first event p50, ms | first text p50, ms | p99, ms | tokens/s each | whole answer p50, s |"
    )
    print("|---|---|---|---|---|---|")
    with serving(demo()) as server:
        url = f"http://127.0.0.1:{server.port}/v1/runs"
        asked = questions()
        for users in QUESTIONS_EACH:
            print(row(users, asyncio.run(crowd(url, users, asked))), flush=True)
    return 0
