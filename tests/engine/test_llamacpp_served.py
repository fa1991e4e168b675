"""`headrace serve` with the embedded model: what its signals mean for the model's process."""

import asyncio
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from harness import is_alive, run_async, until
from headrace.client import AsyncClient
from headrace.engine import models
from headrace.engine.llamacpp.parameters import read_address
from headrace.events import Record, RunQueued

pytestmark = pytest.mark.model


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache folder of the test's own, but with what the real one has: weights, the demo's index."""
    folder = tmp_path / "cache"
    folder.mkdir()
    real = models.install("smollm2").parents[1]
    for entry in real.iterdir():
        if entry.name != "llamacpp":
            (folder / entry.name).symlink_to(entry)
    return folder


@asynccontextmanager
async def served(
    *app: str, log: Path, settings: dict[str, str], limit: Callable[[], None] | None = None
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """`headrace serve app`, and its URL. `limit` runs in the process before it is that."""
    settings = {"LOG__PATH": str(log), "SERVER__PORT": "0", "SERVER__DRAIN_GRACE": "0.1", **settings}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.cli", "serve", *app),
        cwd=Path(__file__).parent,
        env=os.environ | {f"HEADRACE_{name}": value for name, value in settings.items()},
        stdout=asyncio.subprocess.PIPE,
        preexec_fn=limit,
    )
    try:
        assert process.stdout is not None
        line = await process.stdout.readline()
        yield process, line.decode().split()[-1]
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def answer(url: str, question: str = "Say hello.") -> str:
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{url}/v1/runs", json={"input": question}, headers={"Prefer": "wait=60"}) as response,
    ):
        run = await response.json()
        assert response.status == 200, run
        return "".join(turn["text"] for turn in run["state"]["turns"])


def engine_pid(cache: Path) -> int:
    """Of the only embedded process there is."""
    [pid] = [address.pid for place in (cache / "llamacpp").iterdir() if (address := read_address(place))]
    return pid


def test_a_run_that_waits_for_the_model_records_where_it_stands(cache: Path) -> None:
    small = {"CACHE": str(cache), "ENGINE__CONTEXT_TOKENS": "512", "ENGINE__SLOTS": "1", "ENGINE__LINGER": "0"}

    async def scenario() -> None:
        async with served("model_app:app", log=cache / "log", settings=small) as (_, url):
            client = AsyncClient(url)
            first = await client.start("Tell a long story.")
            async for _ in first.events():
                if first.state.turns and first.state.turns[0].text:
                    break  # it has the only place
            second = await client.start("Say hello.")
            events = [item.event async for item in second.events() if isinstance(item, Record)]
            positions = [event.position for event in events if isinstance(event, RunQueued)]
            assert positions == [1, 0]
            assert second.state.status == "completed"
            assert second.state.turns[0].timing.queued_ms > 0
            await client.close()

    run_async(scenario(), deadline=120)


def test_sigterm_leaves_the_model_loaded_for_the_next_server_and_ctrl_c_ends_it(cache: Path) -> None:
    small = {"CACHE": str(cache), "ENGINE__CONTEXT_TOKENS": "512", "ENGINE__SLOTS": "1"}

    async def scenario() -> None:
        async with served("model_app:app", log=cache / "log", settings=small) as (process, url):
            await answer(url)
            before = engine_pid(cache)
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
            assert is_alive(before)
        async with served("model_app:app", log=cache / "log", settings=small) as (process, url):
            await answer(url)
            assert engine_pid(cache) == before
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 0
        await until(lambda: not is_alive(before))

    run_async(scenario(), deadline=120)


def _a_small_device() -> None:
    """One core, and 1 GiB of addresses for each process."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_demo_answers_on_one_core_with_1_gib(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> None:
        small = {"CACHE": str(cache), "ENGINE__SLOTS": "1"}
        async with served(log=cache / "log", settings=small, limit=_a_small_device) as (process, url):
            assert "one execution of an agent" in await answer(url, "What is a run?")
            peaks = [_peak_mib(pid) for pid in (process.pid, engine_pid(cache))]
            with capsys.disabled():
                print(f"\npeak memory of the demo on one core: {peaks} MiB, server and model")
            assert sum(peaks) < 1024
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 0

    run_async(scenario(), deadline=120)


def _peak_mib(pid: int) -> int:
    [peak] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(peak.split()[1]) >> 10
