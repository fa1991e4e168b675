"""Headrace beside its own embedded engine: the same process answers a bare client and Headrace's runs, in turns, so
that the difference is what Headrace adds."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median, quantiles

import aiohttp
import msgspec

from bench.contestants import Contestant, Serving, serving
from headrace.engine.llamacpp.parameters import ProcessAddress, read_address
from headrace.engine.llamacpp.process import LlamaCppProcess
from headrace.engine.openai.request import completion_body
from headrace.engine.port import ModelRequest
from headrace.engine.presets import LLAMA_SERVER
from headrace.messages import Message

TOKENS = 48
Numbers = dict[str, float]


class Answer(msgspec.Struct):
    """When the pieces of one answer came, in seconds since it was asked for."""

    pieces: list[float]

    @property
    def gaps(self) -> list[float]:
        return [after - before for before, after in zip(self.pieces, self.pieces[1:], strict=False)]


Stream = Callable[[str], Awaitable[Answer]]


def question(number: int) -> str:
    """Different from the first word on, so that nothing of it is in a cache."""
    return f"{number} foxes and {number * 7} hens: tell their story."


async def measure(streams: int, rounds: int) -> Numbers:
    """Both, in turns. Ratios and differences are made within a round; the median of the rounds is told."""
    async with both() as (direct, headrace):
        await crowd(direct, streams)
        pairs = [await _round(direct, headrace, streams, ours_first=bool(turn % 2)) for turn in range(rounds)]
    out = {f"direct_{name}": median(bare[name] for bare, _ in pairs) for name in pairs[0][0]}
    out |= {f"headrace_{name}": median(ours[name] for _, ours in pairs) for name in pairs[0][0]}
    return {
        **out,
        "rounds": rounds,
        **halves("total_ratio", [ours["total_s"] / bare["total_s"] for bare, ours in pairs]),
        **halves("first_added_ms", [ours["first_p50_ms"] - bare["first_p50_ms"] for bare, ours in pairs]),
        **halves("rate_ratio", [ours["tokens_per_s"] / bare["tokens_per_s"] for bare, ours in pairs]),
        **halves("gap_p99_ratio", [ours["gap_p99_ms"] / bare["gap_p99_ms"] for bare, ours in pairs]),
    }


def halves(name: str, values: Sequence[float]) -> Numbers:
    """The median by its name, and between what the middle half of the rounds lies: the least and the most of 41 rounds
    are the machine's."""
    low, middle, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return {name: middle, f"{name}_q1": low, f"{name}_q3": high}


async def _round(direct: Stream, headrace: Stream, streams: int, *, ours_first: bool) -> tuple[Numbers, Numbers]:
    """The bare client's numbers, and ours."""
    if ours_first:
        ours = numbers(await crowd(headrace, streams))
        return numbers(await crowd(direct, streams)), ours
    return numbers(await crowd(direct, streams)), numbers(await crowd(headrace, streams))


def numbers(answers: list[Answer]) -> Numbers:
    gaps = [gap for answer in answers for gap in answer.gaps]
    total = max(answer.pieces[-1] for answer in answers)
    return {
        "total_s": total,
        "first_p50_ms": median(answer.pieces[0] for answer in answers) * 1e3,
        "gap_p99_ms": quantiles(gaps, n=100)[98] * 1e3,
        "tokens_per_s": len(answers) * TOKENS / total,
    }


_asked = iter(range(100, 10_000_000))


async def crowd(stream: Stream, streams: int) -> list[Answer]:
    return await asyncio.gather(*(stream(question(next(_asked))) for _ in range(streams)))


@asynccontextmanager
async def one_engine(*, settings: Mapping[str, str] | None = None) -> AsyncIterator[tuple[Serving, LlamaCppProcess]]:
    """Headrace, and the engine's process that it uses, for those who ask that without Headrace. `settings` are
    variables of its environment."""
    async with AsyncExitStack() as stack:
        server = stack.enter_context(serving(_contestant(settings or {})))
        async with aiohttp.ClientSession() as http:
            await _until_open(http, f"http://127.0.0.1:{server.port}/readyz")
        process = await _process(server.folder / "home")
        stack.push_async_callback(process.leave, keep=True)
        yield server, process


@asynccontextmanager
async def both() -> AsyncIterator[tuple[Stream, Stream]]:
    """Who asks the engine's process itself, and who asks Headrace, which asks the same process."""
    connections = aiohttp.TCPConnector(limit=0, force_close=True)
    async with one_engine() as (server, process), aiohttp.ClientSession(connector=connections) as http:

        async def direct(text: str) -> Answer:
            request = ModelRequest(
                messages=(Message(role="user", content=text),), max_tokens=TOKENS, extra={"ignore_eos": True}
            )
            body = completion_body(request, model="bench", spelling=LLAMA_SERVER.spelling)
            head = {"Authorization": f"Bearer {process.api_key}"}
            return await _read(http, f"{process.url}/v1/chat/completions", body, head, _has_text)

        yield direct, through_headrace(http, server.port)


def through_headrace(http: aiohttp.ClientSession, port: int, *, tokens: int = TOKENS) -> Stream:
    """Who starts a run and streams it."""

    async def headrace(text: str) -> Answer:
        body = {"input": text, "options": {"max_tokens": tokens}}
        return await _read(http, f"http://127.0.0.1:{port}/v1/runs", body, {"Accept": "text/event-stream"}, _is_text)

    return headrace


def _has_text(line: bytes) -> bool:
    return b'"content":"' in line and b'"content":""' not in line


def _is_text(line: bytes) -> bool:
    return line == b"event: text.delta\n"


async def _read(
    http: aiohttp.ClientSession, url: str, body: object, head: dict[str, str], is_piece: Callable[[bytes], bool]
) -> Answer:
    """As little as a client can do."""
    began = time.perf_counter()
    async with http.post(url, json=body, headers=head) as response:
        response.raise_for_status()
        answer = Answer([time.perf_counter() - began async for line in response.content if is_piece(line)])
    if not answer.pieces:
        raise RuntimeError(f"{url} ended an answer without a word")
    return answer


def _contestant(settings: Mapping[str, str]) -> Contestant:
    headrace = str(Path(sys.executable).with_name("headrace"))
    places = {
        "HEADRACE_SERVER__PORT": "{PORT}",
        "HEADRACE_LOG__PATH": "{DATA}/store",
        "BENCH_HOME": "{DATA}/home",
    }
    command = (headrace, "serve", "bench.engine_app:app")
    return Contestant(name="embedded", command=command, settings={**places, **settings}, all_cores=True)


async def _until_open(http: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(120):
        while True:
            async with http.get(url) as answer:
                if answer.status == 200:
                    return
            await asyncio.sleep(0.1)


async def _process(home: Path) -> LlamaCppProcess:
    address = _address(home)
    return await LlamaCppProcess.reach(address.parameters, home=home, log=home / "log", check=lambda: None)


def _address(home: Path) -> ProcessAddress:
    """Of the only process that is found there."""
    [address] = [found for place in home.iterdir() if (found := read_address(place)) is not None]
    return address
