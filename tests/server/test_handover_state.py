"""A long answer of the embedded model goes on from its saved state at the next server, whoever of the two has died."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from harness import is_alive, run_async, until
from headrace.engine import models
from headrace.engine.llamacpp.parameters import read_address
from serving import parse

pytestmark = pytest.mark.model

TOKENS = 60
STORY = {
    "input": "Tell a story about a fox. " * 8,
    "options": {"temperature": 0.0, "max_tokens": TOKENS},
}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache folder of the test's own, with the weights of the real one."""
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "models").symlink_to(models.install("smollm2").parent)
    return folder


class Served:
    """A server, and the model's process that it uses."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, http: aiohttp.ClientSession, cache: Path) -> None:
        self.process = process
        self._url = url
        self._http = http
        self._cache = cache

    @property
    def model_pid(self) -> int:
        [pid] = [found.pid for place in (self._cache / "llamacpp").iterdir() if (found := read_address(place))]
        return pid

    async def start(self) -> str:
        async with self._http.post(f"{self._url}/v1/runs", json=STORY) as answer:
            run_id: str = (await answer.json())["run_id"]
            return run_id

    @asynccontextmanager
    async def following(self, run_id: str, *, after: int = 0) -> AsyncIterator[aiohttp.StreamReader]:
        headers = {"Last-Event-ID": str(after)}
        async with self._http.get(f"{self._url}/v1/runs/{run_id}/events?chunk=token", headers=headers) as answer:
            assert answer.status == 200
            yield answer.content

    async def goes(self, *signals: signal.Signals) -> None:
        """The last one is for the model's process."""
        pids = (self.process.pid, self.model_pid)
        for pid, how in zip(pids, signals, strict=False):
            os.kill(pid, how)
        await self.process.wait()


@asynccontextmanager
async def served(cache: Path, *, every: int) -> AsyncIterator[Served]:
    settings = {
        "CACHE": cache,
        "LOG__PATH": cache / "log",
        "SERVER__PORT": 0,
        "SERVER__DRAIN_GRACE": 0.1,
        "ENGINE__CONTEXT_TOKENS": 512,
        "ENGINE__SLOTS": 1,
        "ENGINE__LINGER": 30,
        "ENGINE__SNAPSHOT_TOKENS": every,
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.cli", "serve", "model_app:app"),
        cwd=Path(__file__).parents[1] / "engine",
        env=os.environ | {f"HEADRACE_{name}": str(value) for name, value in settings.items()},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().split()[-1]
        async with aiohttp.ClientSession() as http:
            yield Served(process, url, http, cache)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)  # with which the model's process ends too
        await process.communicate()


async def read_words(stream: aiohttp.StreamReader, count: int) -> bytes:
    raw = b""
    while raw.count(b"event: text.delta") < count:
        piece = await stream.readany()
        assert piece, raw
        raw += piece
    return raw


async def read_rest(stream: aiohttp.StreamReader) -> bytes:
    raw = b""
    with contextlib.suppress(aiohttp.ClientError):
        while piece := await stream.readany():
            raw += piece
    return raw


def whole_records(raw: bytes) -> list[dict[str, Any]]:
    return parse(raw[: raw.rfind(b"\n\n") + 2])


def states(cache: Path) -> list[Path]:
    return list(cache.glob("llamacpp/snapshots/*/*"))


def uncut_usage(events: list[dict[str, Any]]) -> dict[str, int]:
    [usage] = [event["usage"] for event in events if event["event"] == "turn.finished"]
    assert isinstance(usage, dict)
    return usage


async def cut(first: Served, how: tuple[signal.Signals, ...]) -> tuple[str, list[dict[str, Any]]]:
    """A run, and what its client saw of it until its server was gone."""
    run_id = await first.start()
    async with first.following(run_id) as stream:
        raw = await read_words(stream, 25)
        await first.goes(*how)
        raw += await read_rest(stream)
    return run_id, whole_records(raw)


async def gone_on_with(second: Served, run_id: str, seen: list[dict[str, Any]]) -> tuple[dict[str, int], int]:
    """What the rest of the answer was computed from, and how long its prompt is. Checks the rest of it."""
    async with second.following(run_id, after=seen[-1]["id"]) as stream:
        events = seen + whole_records(await read_rest(stream))
    assert [event["id"] for event in events] == list(range(1, len(events) + 1)), "each record once, in order"
    kinds = [event["event"] for event in events]
    assert kinds[-1] == "run.finished"
    assert (kinds.count("run.recovered"), kinds.count("turn.continued"), kinds.count("text.retracted")) == (1, 1, 0)
    async with second.following(await second.start()) as stream:
        uncut = whole_records(await read_rest(stream))
    assert text_of(events) == events[-1]["output"] == uncut[-1]["output"] == text_of(uncut)
    usage = uncut_usage(events)
    assert usage["output_tokens"] == TOKENS
    return usage, uncut_usage(uncut)["input_tokens"]


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event["text"] for event in events if event["event"] == "text.delta")


@pytest.mark.parametrize("model", ["stays", "dies"])
def test_at_sigterm_the_answer_is_handed_over_with_its_state(cache: Path, model: str) -> None:
    """Nothing was saved before: the answer is shorter than what lies between two states."""

    async def scenario() -> None:
        async with served(cache, every=1000) as first:
            pid = first.model_pid
            run_id, seen = await cut(first, (signal.SIGTERM,))
        assert [state.suffix for state in states(cache)] == [".kv"]
        if model == "dies":
            os.kill(pid, signal.SIGKILL)
            await until(lambda: not is_alive(pid))
        async with served(cache, every=1000) as second:
            assert (second.model_pid == pid) == (model == "stays")
            usage, prompt = await gone_on_with(second, run_id, seen)
            assert usage["input_tokens"] > prompt + 20, "the prompt and what had been said"
            assert usage["cached_tokens"] >= usage["input_tokens"] - 2, "none of it was computed again"
        assert states(cache) == []

    run_async(scenario(), deadline=240)


def test_when_the_server_and_the_model_are_killed_at_once_the_answer_goes_on_from_the_last_saved_state(
    cache: Path,
) -> None:
    async def scenario() -> None:
        async with served(cache, every=16) as first:
            run_id, seen = await cut(first, (signal.SIGKILL, signal.SIGKILL))
        assert any(state.suffix == ".kv" for state in states(cache))
        async with served(cache, every=16) as second:
            usage, prompt = await gone_on_with(second, run_id, seen)
            assert usage["cached_tokens"] >= prompt + 14, "at least the first segment's tokens came from the file"
        assert states(cache) == []

    run_async(scenario(), deadline=240)
