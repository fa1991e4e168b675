"""Two real instances on one Redis behind nginx: one is killed, one after the other is restarted, and nobody notices."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from harness import run_async, until
from headrace.client import AsyncClient
from headrace.client.run import Run
from headrace.events import Record, RunRecovered
from nginx import Nginx, free_ports
from serving import parse
from talking_app import TEXT

TESTS = Path(__file__).parents[1]


class Instance:
    """`headrace serve` on a port of its own, with the log that all instances share."""

    def __init__(self, redis_url: str, prefix: str) -> None:
        (self.port,) = free_ports(1)
        self._environment = {
            **os.environ,
            "HEADRACE_LOG__URL": redis_url,
            "HEADRACE_LOG__PREFIX": prefix,
            "HEADRACE_LOG__LEASE": "1",
            "HEADRACE_SERVER__PORT": str(self.port),
        }
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it and wait until it is ready."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headrace.cli", "serve", "talking_app:app"),
            cwd=TESTS,
            env=self._environment,
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None
        assert await self._process.stdout.readline(), "the instance ended before it was ready"

    async def end(self, how: signal.Signals) -> None:
        """Send a signal and wait until the process has gone."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(how)
        await self._process.communicate()


@asynccontextmanager
async def two_instances(folder: Path, redis_url: str, prefix: str) -> AsyncIterator[tuple[list[Instance], Nginx]]:
    instances = [Instance(redis_url, prefix) for _ in range(2)]
    try:
        await asyncio.gather(*(instance.start() for instance in instances))
        async with Nginx(folder, [instance.port for instance in instances]) as nginx:
            yield instances, nginx
    finally:
        for instance in instances:
            await instance.end(signal.SIGKILL)


@pytest.mark.slow
def test_followers_of_a_killed_instance_read_on_at_the_other_one(
    tmp_path: Path, redis_url: str, redis_prefix: str
) -> None:
    async def scenario() -> None:
        async with (
            two_instances(tmp_path, redis_url, redis_prefix) as ((owner, _), nginx),
            AsyncClient(f"http://127.0.0.1:{owner.port}") as direct,
            AsyncClient(nginx.url) as client,
        ):
            run = await direct.start("Talk.")
            followed = [client.run(run.id) for _ in range(6)]  # about half of them come to the owner
            following = [asyncio.create_task(_read(run)) for run in followed]
            await until(lambda: all("word9 " in run.state.text for run in followed))
            assert not any(run.state.ended for run in followed)
            await owner.end(signal.SIGKILL)
            assert await asyncio.gather(*following) == [(TEXT, 1)] * len(following)

    run_async(scenario(), deadline=60)


async def _read(run: Run) -> tuple[str, int]:
    """The run's output, and how often another instance went on with it. The client refuses gaps and repetitions."""
    items = [item async for item in run.events(chunk="token")]
    recovered = [item for item in items if isinstance(item, Record) and isinstance(item.event, RunRecovered)]
    return run.state.output, len(recovered)


@pytest.mark.slow
def test_a_rolling_restart_under_load_shows_no_error_to_any_client(
    tmp_path: Path, redis_url: str, redis_prefix: str
) -> None:
    """Users that only know HTTP start runs without a key and follow them to the end; each answer is looked at."""

    async def scenario() -> None:
        over = asyncio.Event()

        async def keep_asking(http: aiohttp.ClientSession, url: str) -> int:
            asked = 0
            while not over.is_set():
                assert await _ask(http, url) == TEXT
                asked += 1
            return asked

        async with (
            two_instances(tmp_path, redis_url, redis_prefix) as (instances, nginx),
            aiohttp.ClientSession() as http,
        ):
            users = [asyncio.create_task(keep_asking(http, nginx.url)) for _ in range(4)]
            for instance in instances:
                await until(lambda: _served(nginx, instance), deadline=30)  # noqa: B023
                await instance.end(signal.SIGTERM)
                seen = len(nginx.log())
                await instance.start()
                await until(lambda: _served(nginx, instance, seen), deadline=30)  # noqa: B023
            over.set()
            assert all(await asyncio.gather(*users))

    run_async(scenario(), deadline=120)


def _served(nginx: Nginx, instance: Instance, after: int = 0) -> bool:
    """Whether nginx has given the instance a request that it answered, later than so much of nginx's log."""
    return any(f":{instance.port} 20" in line for line in nginx.log()[after:].splitlines())


async def _ask(http: aiohttp.ClientSession, url: str) -> str:
    """Start a run and read it as an EventSource would: the last id is where it goes on after a cut."""
    async with http.post(f"{url}/v1/runs", json={"input": "Talk."}) as answer:
        assert answer.status == 202, await answer.text()
        run_id = (await answer.json())["run_id"]
    events: list[dict[str, object]] = []
    while not events or events[-1]["event"] != "run.finished":
        headers = {"last-event-id": str(events[-1]["id"])} if events else {}
        async with http.get(f"{url}/v1/runs/{run_id}/events?chunk=token", headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            events += parse(await answer.read())
    assert [event["id"] for event in events] == list(range(1, len(events) + 1))
    return str(events[-1]["output"])
