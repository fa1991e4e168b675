"""What is tested alike of every engine that lives in a process of its own: it is killed, or its server is."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Protocol

import pytest

from harness import is_alive, until
from headrace.engine.port import Engine, ModelRequest, Text
from headrace.errors import EngineDied
from headrace.testing.engine_contract import collect, text_of

_PARENT = """
import asyncio, importlib, sys
from pathlib import Path

module, name, weights = sys.argv[1:]

async def main():
    async with getattr(importlib.import_module(module), name)(Path(weights), slots=1, context=256) as engine:
        print(engine.pid, flush=True)
        await asyncio.sleep(3600)

asyncio.run(main())
"""


class Embedded(Engine, Protocol):
    @property
    def restarts(self) -> int: ...

    @property
    def pid(self) -> int | None: ...


async def kill_in_the_middle(engine: Embedded, endless: ModelRequest) -> None:
    """Its stream breaks, and the next request is answered by another process."""
    before = engine.pid
    assert before is not None
    with pytest.raises(EngineDied) as caught:
        await _read_and_kill(engine, endless, before)
    assert caught.value.retryable
    assert text_of(await collect(engine)), "a request that comes meanwhile waits for the restart"
    assert engine.pid != before
    assert engine.restarts == 1


async def _read_and_kill(engine: Engine, endless: ModelRequest, pid: int) -> None:
    async with engine.stream(endless) as chunks:
        assert isinstance(await anext(chunks), Text)
        os.kill(pid, signal.SIGKILL)
        async for _ in chunks:
            pass


async def leave_no_orphan(kind: type[Embedded], weights: Path, how: signal.Signals) -> None:
    """Once the server has been sent this signal, its engine's process ends too."""
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _PARENT, kind.__module__, kind.__qualname__, str(weights)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert parent.stdout is not None
    child = int(await parent.stdout.readline())
    assert is_alive(child)
    parent.send_signal(how)
    await parent.wait()
    await until(lambda: not is_alive(child))
