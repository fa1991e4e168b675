"""`headrace serve` with the embedded model: what its signals mean for the model's process."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from harness import is_alive, run_async, until
from headrace.engine import models
from headrace.engine.llamacpp_parameters import read_address

pytestmark = pytest.mark.model


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache folder of the test's own, with the weights in it."""
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "models").symlink_to(models.install("smollm2").parent)
    return folder


@asynccontextmanager
async def served(cache: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    settings = {
        "HEADRACE_CACHE": str(cache),
        "HEADRACE_LOG__PATH": str(cache / "log"),
        "HEADRACE_SERVER__PORT": "0",
        "HEADRACE_SERVER__DRAIN_GRACE": "0.1",
        "HEADRACE_ENGINE__CONTEXT_TOKENS": "512",
        "HEADRACE_ENGINE__SLOTS": "1",
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.cli", "serve", "model_app:app"),
        cwd=Path(__file__).parent,
        env=os.environ | settings,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        line = await process.stdout.readline()
        yield process, line.decode().split()[-1]
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def answer(url: str) -> None:
    body, patient = {"input": "Say hello."}, {"Prefer": "wait=30"}
    async with aiohttp.ClientSession() as http, http.post(f"{url}/v1/runs", json=body, headers=patient) as response:
        assert response.status == 200, await response.text()


def engine_pid(cache: Path) -> int:
    """Of the only embedded process there is."""
    [pid] = [address.pid for place in (cache / "llamacpp").iterdir() if (address := read_address(place))]
    return pid


def test_sigterm_leaves_the_model_loaded_for_the_next_server_and_ctrl_c_ends_it(cache: Path) -> None:
    async def scenario() -> None:
        async with served(cache) as (process, url):
            await answer(url)
            before = engine_pid(cache)
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
            assert is_alive(before)
        async with served(cache) as (process, url):
            await answer(url)
            assert engine_pid(cache) == before
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 0
        await until(lambda: not is_alive(before))

    run_async(scenario(), deadline=120)
