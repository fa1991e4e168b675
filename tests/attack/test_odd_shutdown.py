"""A process that was told to go goes, whatever its agents do, and what they began is ended at the next start."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from harness import run_async
from serving import parse, read_until


@asynccontextmanager
async def served(store: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    settings = {"HEADRACE_LOG__PATH": str(store), "HEADRACE_SERVER__PORT": "0", "HEADRACE_SERVER__DRAIN_GRACE": "0"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.cli", "serve", "odd_app:app"),
        cwd=Path(__file__).parent,
        env={**os.environ, **settings},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        yield process, (await process.stdout.readline()).decode().split()[-1]
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def test_a_second_signal_ends_a_server_whose_agent_ignores_its_cancellation_and_the_run_ends_at_the_next_start(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with aiohttp.ClientSession() as http:
            async with served(tmp_path) as (process, url):
                async with http.post(f"{url}/v1/runs", data=b'{"input":"x"}') as answer:
                    events = f"/v1/runs/{answer.headers['x-run-id']}/events"
                async with http.get(url + events) as answer:
                    await read_until(answer, b"never mind")
                    process.send_signal(signal.SIGTERM)
                    await answer.read()  # it is going: its streams are cut
                process.send_signal(signal.SIGTERM)
                assert await process.wait() == 1
            async with served(tmp_path) as (_, url), http.get(url + events) as answer:
                heard = parse(await answer.read())
        assert [e["event"] for e in heard[-2:]] == ["run.recovered", "run.error"]
        assert heard[-1]["code"] == "run_interrupted"

    run_async(scenario(), deadline=30)
