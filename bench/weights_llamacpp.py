"""A GGUF file served by the embedded llama.cpp engine, and what that thinks of a text."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from bench.perplexity import Foretold, Window
from bench.process import pss_kb, scratch
from bench.weights_row import Row, Task, spoken
from headrace.engine.llamacpp.engine import LlamaCppEngine
from headrace.engine.llamacpp.parameters import LlamaCppParameters, read_address
from headrace.engine.llamacpp.process import LlamaCppProcess

_CERTAIN = 1e4
"""A bias that leaves no other token a chance. The log probabilities that the server tells are those before it."""


def served(path: Path, task: Task) -> Row:
    """The KV cache is f16, so that only the weights tell the rows apart."""
    with scratch() as home:
        rate, answers, memory, thought = asyncio.run(_served(path, task, home))
    return Row(
        weights_mib=path.stat().st_size / 2**20,
        memory_mib=memory,
        rate=rate,
        answers=answers,
        foretold=thought,
    )


async def _served(path: Path, task: Task, home: Path) -> tuple[float, list[str], float, Foretold]:
    settings: dict[str, Any] = {"context": max(task.longest, 512), "kv": "f16", "threads": task.threads}
    async with LlamaCppEngine(path, slots=1, home=home, linger=1.0, log=home / "log", **settings) as engine:
        rate, answers = await spoken(engine, task)
        assert engine.pid is not None
        memory = pss_kb([engine.pid]) / 1024
        return rate, answers, memory, await foretold(home, task.windows)


async def tokens_of(path: Path, text: str) -> list[int]:
    """As every row is given them."""
    with scratch() as home:
        async with (
            LlamaCppEngine(path, slots=1, context=64, home=home, linger=1.0, log=home / "log"),
            _asking(home) as session,
        ):
            tokens: list[int] = (await _post(session, "/tokenize", {"content": text}))["tokens"]
            return tokens


async def foretold(home: Path, texts: Sequence[Window]) -> Foretold:
    """By the process that serves in `home`, with its rounding: a request for every token, which its bias makes certain,
    so that the server tells what it thought of it. What was before comes from the server's cache."""
    logprobs, likeliest = [], []
    async with _asking(home) as session:
        for window in texts:
            for at in range(1, len(window)):
                told = await _thought_of(session, window[:at], window[at])
                logprobs.append(float(told["logprob"]))
                likeliest.append(int(told["top_logprobs"][0]["id"]))
    return Foretold(logprobs=logprobs, likeliest=likeliest)


async def _thought_of(session: aiohttp.ClientSession, before: Window, token: int) -> dict[str, Any]:
    body = {"prompt": before, "n_predict": 1, "n_probs": 1, "temperature": 0, "logit_bias": [[token, _CERTAIN]]}
    [told] = (await _post(session, "/completion", body))["completion_probabilities"]
    if told["id"] != token:
        raise RuntimeError(f"llama.cpp chose token {told['id']} where {token} had been made certain")
    found: dict[str, Any] = told
    return found


@asynccontextmanager
async def _asking(home: Path) -> AsyncIterator[aiohttp.ClientSession]:
    """The engine's own process, the only one that is found there, without the engine."""
    process = await LlamaCppProcess.reach(_parameters(home), home=home, log=home / "log", check=lambda: None)
    try:
        async with aiohttp.ClientSession(
            process.url, headers={"Authorization": f"Bearer {process.api_key}"}
        ) as session:
            yield session
    finally:
        await process.leave(keep=True)


def _parameters(home: Path) -> LlamaCppParameters:
    [address] = [found for place in home.iterdir() if (found := read_address(place)) is not None]
    return address.parameters


async def _post(session: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> dict[str, Any]:
    async with session.post(path, json=body) as answer:
        answer.raise_for_status()
        found: dict[str, Any] = await answer.json()
        return found
