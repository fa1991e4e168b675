"""The process that dies while it begins a run, run by supervisor/test_early_beginnings.py.

early_child.py FOLDER DURABILITY A B   for each n from A to B: a child that dies after n steps of its disk
"""

import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

from headrace import Agent, ToolContext, tool
from headrace.engine.port import ModelRequest, Text, ToolCallPart
from headrace.engine.scripted import Script, ScriptedEngine
from headrace.log.disk import Disk
from headrace.log.follow import follow
from headrace.log.journal import JournalLog
from headrace.messages import Message
from headrace.runs import Runs, StartRun
from headrace.supervisor import Supervisor
from headrace.testing.disk import DyingDisk

Durability = Literal["journal", "fsync"]
WISH = StartRun(input=(Message(role="user", content="Charge my card."),))


def write_down(file: Path, line: str) -> None:
    """One short O_APPEND write: whole or not at all, also when the process dies with the next instruction."""
    fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{line}\n".encode())
    os.close(fd)


def hasty_agent(ledger: Path) -> Agent:
    """Its model calls a tool with its very first word."""

    @tool(effect="once")
    async def charge(context: ToolContext) -> str:
        """Charge the card."""
        write_down(ledger, context.call_id)
        return "charged"

    def answer(request: ModelRequest) -> Script:
        if request.messages[-1].role == "tool":
            return [Text("Done.")]
        return [ToolCallPart(index=0, call_id=None, name="charge", arguments="{}")]

    return Agent(name="hasty", instructions="Charge.", engine=ScriptedEngine(answer), tools=[charge])


class UnhurriedDisk(DyingDisk):
    """Where a thread writes, all that does not wait for it has happened when it dies."""

    def _step(self) -> None:
        if self.steps == 0 and threading.current_thread() is not threading.main_thread():
            time.sleep(0.05)
        super()._step()


@asynccontextmanager
async def serving(folder: Path, durability: Durability, disk: Disk | None = None) -> AsyncIterator[Runs]:
    agent = hasty_agent(folder / "ledger")
    log = JournalLog(folder / "store", durability=durability, disk=disk, tidy_every_s=3600)
    async with log, Supervisor(log=log, agents={"hasty": agent}, engine=None) as supervisor:
        yield Runs(log=log, agents={"hasty": ""}, launch=supervisor.launch, early={"hasty"})


async def one_run(folder: Path, durability: Durability, steps: int) -> None:
    async with serving(folder, durability, UnhurriedDisk(steps, bytewise=False)) as runs:
        run_id = await runs.start(WISH, tenant="t", key="k", fingerprint="f")
        write_down(folder / "told", run_id)
        async for _ in follow(runs.log, run_id):
            pass
    write_down(folder / "told", "closed")


def every_step(root: Path, durability: Durability, numbers: range) -> None:
    for steps in numbers:
        (root / str(steps)).mkdir()
        child = os.fork()
        if child == 0:
            asyncio.run(one_run(root / str(steps), durability, steps))
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    where, level, first, last = sys.argv[1:]
    every_step(Path(where), "fsync" if level == "fsync" else "journal", range(int(first), int(last)))
