"""A server whose log is in Redis: from the setting to the run."""

import os
import platform
import subprocess
import sys

import pytest

from harness import run_async, until
from headrace.config import Config, LogConfig, ServerConfig
from headrace.errors import ConfigError, LogUnavailable
from headrace.events import RunReleased
from headrace.logs import open_log
from serving import FunctionAgent, Gate, count, running

THIS_WORKER = f"{platform.node()}:{os.getpid()}"


def shared(url: str, prefix: str = "headrace") -> Config:
    return Config(server=ServerConfig(port=0), log=LogConfig(url=url, prefix=prefix))


def test_a_run_outlives_the_server_in_the_redis_that_is_named(redis_url: str, redis_prefix: str) -> None:
    async def scenario() -> None:
        settings = shared(redis_url, redis_prefix)
        async with running(FunctionAgent(count), settings=settings) as first:
            state = await first.finished("3")
        async with running(FunctionAgent(count), settings=settings) as second:
            status, run = await second.get(f"/v1/runs/{state['run_id']}")
        assert (status, run["state"]["output"]) == (200, "w0 w1 w2 ")

    run_async(scenario())


def test_a_server_says_at_start_what_its_redis_may_lose(
    redis_url: str, redis_prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with running(FunctionAgent(count), settings=shared(redis_url, redis_prefix)):
            pass

    run_async(scenario())
    assert "appendonly" in caplog.text


def test_a_run_that_its_server_releases_is_not_reported_as_lost(
    redis_url: str, redis_prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        gate = Gate()
        agent = FunctionAgent(gate, resumable=True)
        async with running(agent, settings=shared(redis_url, redis_prefix)) as first:
            run_id = await first.start("x")
            await gate.entered.wait()
            await first.server.supervisor.drain(0)
            await until(lambda: not first.server.supervisor.active)
            assert (await first.server.log.read(run_id))[-1].event == RunReleased(worker=THIS_WORKER)

    run_async(scenario())
    assert "any more" not in caplog.text


def test_a_redis_that_is_not_there_is_said_at_start() -> None:
    async def scenario() -> None:
        async with running(FunctionAgent(count), settings=shared("redis://127.0.0.1:9")):
            pytest.fail("it began")

    with pytest.raises(LogUnavailable):
        run_async(scenario())


def test_a_url_that_cannot_be_read_is_refused_without_repeating_it() -> None:
    with pytest.raises(ConfigError) as refused:
        open_log(shared("redis://app:sec:ret/secret@cache"))
    assert "secret" not in f"{refused.value.message} {refused.value.hint}"
    assert "%2F" in str(refused.value.hint)


def test_without_the_driver_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['redis'] = None; from headrace.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, "serve", "--port", "0", "--log-url", "redis://127.0.0.1:9"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert "pip install 'headrace[redis]'" in done.stderr
