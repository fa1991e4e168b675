"""What is written together, and how long anybody waits for it."""

import asyncio

from harness import run_async
from headrace.events import TextDelta
from headrace.log.memory import MemoryLog
from headrace.log.ports import NewRun
from headrace.testing.log_contract import begin, run_id, started

TICKS = 10


def test_runs_that_begin_in_every_tick_hold_up_nobody() -> None:
    """A new run makes its batch wait for its first steps, and the next one must not make it wait again."""

    async def main() -> None:
        async with MemoryLog() as log, asyncio.TaskGroup() as group:
            claim = await begin(log, 1)
            commit = group.create_task(log.writer(claim).commit(TextDelta(text="a")))
            for number in range(2, 2 + TICKS):
                new = NewRun(run_id=run_id(number))
                group.create_task(log.create(new, started(), begun=lambda _: None))
                await asyncio.sleep(0)
            assert commit.done()

    run_async(main())
