import asyncio
import logging
import threading
import time

import pytest
import uvloop

from harness import run_async, until
from headrace.resilience.watchdog import watch_loop


def block(seconds: float) -> None:
    time.sleep(seconds)  # what somebody's agent does


async def blocks_the_loop(times: int = 1) -> int:
    async with watch_loop(threshold=0.05) as watchdog:
        for expected in range(1, times + 1):
            while watchdog.blocks < expected:  # a starved machine may let a block pass unseen
                await asyncio.sleep(0)
                block(0.3)
                await asyncio.sleep(0.06)
    return watchdog.blocks


def test_a_blocking_call_is_logged_with_its_stack(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "headrace.watchdog"):
        run_async(blocks_the_loop())
    (record,) = caplog.records
    assert "in block" in record.getMessage()
    assert "time.sleep(seconds)" in record.getMessage()


def test_under_uvloop_too(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "headrace.watchdog"), asyncio.Runner(loop_factory=uvloop.new_event_loop) as r:
        r.run(asyncio.wait_for(blocks_the_loop(), 30))
    assert "in block" in caplog.text


def test_many_blocks_are_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "headrace.watchdog"):
        assert run_async(blocks_the_loop(times=3)) >= 3
    assert len(caplog.records) == 1


def test_a_loop_that_is_idle_is_not_blocked(caplog: pytest.LogCaptureFixture) -> None:
    async def idle() -> int:
        async with watch_loop(threshold=0.02) as watchdog:
            await asyncio.sleep(0.3)
        return watchdog.blocks

    with caplog.at_level(logging.WARNING, "headrace.watchdog"):
        assert run_async(idle()) == 0


def test_the_thread_ends_with_the_context() -> None:
    async def watch() -> None:
        async with watch_loop():
            assert any(t.name == "headrace-watchdog" for t in threading.enumerate())
        await until(lambda: not any(t.name == "headrace-watchdog" for t in threading.enumerate()))

    run_async(watch())
