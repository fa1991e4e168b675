"""A GGUF file served by the OpenVINO engine, and what its library thinks of a text."""

import asyncio
from pathlib import Path
from typing import Any

from bench.perplexity import Foretold
from bench.process import pss_kb, scratch
from bench.sparse_attention import Setting, answer, pipeline
from bench.weights_row import Row, Task, spoken
from headrace.engine.openvino.engine import OpenVinoEngine


def served(path: Path, task: Task) -> Row:
    """The engine speaks; the same file, opened here by the library, foretells. That tells no token but the text's own,
    so nothing is known of the likeliest."""
    with scratch() as home:
        rate, answers, memory = asyncio.run(_spoken(path, task, home))
    pipe = pipeline(path, Setting(step=task.longest), context=task.longest + 1, kv="f32")
    logprobs = [
        logprob
        for window in task.windows
        for logprob in answer(pipe, window, tokens=1, echo=True).logprobs[1 : len(window)]
    ]
    return Row(
        weights_mib=path.stat().st_size / 2**20,
        memory_mib=memory,
        rate=rate,
        answers=answers,
        foretold=Foretold(logprobs=logprobs, likeliest=[]),
    )


async def _spoken(path: Path, task: Task, home: Path) -> tuple[float, list[str], float]:
    settings: dict[str, Any] = {"context": max(task.longest, 512), "threads": task.threads, "log": home / "log"}
    async with OpenVinoEngine(path, slots=1, kv="f32", **settings) as engine:
        rate, answers = await spoken(engine, task)
        assert engine.pid is not None
        return rate, answers, pss_kb([engine.pid]) / 1024
