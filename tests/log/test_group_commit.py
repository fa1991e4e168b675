"""What is written together, and how long anybody waits for it."""

import asyncio

import pytest

from harness import run_async
from headrace.events import TextDelta
from headrace.log.batch import CROWDED
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


@pytest.mark.parametrize(("runs", "seen"), [(CROWDED - 1, [2, 3, 4]), (CROWDED, [1, 3, 3])])
def test_a_crowded_tick_is_written_with_the_next_one(runs: int, seen: list[int]) -> None:
    """`seen` is the last record that is shown after each tick in which every run says a word."""

    async def main() -> None:
        async with MemoryLog() as log:
            claims = [await begin(log, number) for number in range(runs)]
            writers = [log.writer(claim) for claim in claims]
            heads = []
            for _ in seen:
                for writer in writers:
                    writer.emit(TextDelta(text="a"))
                await asyncio.sleep(0)
                heads.append((await log.head(claims[0].run_id)).seq)
            assert heads == seen

    run_async(main())


def test_a_crowded_tick_is_written_at_once_where_somebody_waits_for_it() -> None:
    async def main() -> None:
        async with MemoryLog() as log, asyncio.TaskGroup() as group:
            waiting, *others = [await begin(log, number) for number in range(CROWDED + 1)]
            commit = group.create_task(log.writer(waiting).commit(TextDelta(text="a")))
            for claim in others:
                log.writer(claim).emit(TextDelta(text="a"))
            await asyncio.sleep(0)
            assert (await log.head(others[0].run_id)).seq == 2
            await commit

    run_async(main())
