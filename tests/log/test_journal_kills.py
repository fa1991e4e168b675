"""SIGKILL inside the write, at every system call and at random: what was acknowledged is there, and nothing is torn."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from headrace.events import CancelRequested, RunStarted, TextDelta
from headrace.log.journal import JournalLog
from headrace.log.ports import NewRun
from headrace.log.retention import Retention
from headrace.state import fold, initial
from headrace.testing.log_contract import unfinished

CHILD = Path(__file__).with_name("journal_child.py")
Acks = list[list[str | int]]


@pytest.fixture
def place() -> Iterator[Path]:
    """In memory where there is such a thing: kill -9 does not touch it, and thousands of syncs cost nothing."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        yield Path(directory)


def read_acks(data: bytes) -> Acks:
    """A line that was cut short was not received."""
    return [json.loads(line) for line in data.split(b"\n")[:-1]]


async def check(path: Path, acks: Acks) -> None:
    """Everything acknowledged is there, no run has a gap or an unreadable record, and every run goes on."""
    async with JournalLog(path, retention=Retention(seal_after_s=0.0), tidy_every_s=3600) as log:
        for what, *details in acks:
            if what == "created":
                await check_created(log, str(details[0]))
            elif what == "record":
                await check_record(log, str(details[0]), int(details[1]), str(details[2]))
            elif what == "keyed":
                records = await log.append(str(details[0]), [CancelRequested()], key="c")
                assert [record.seq for record in records] == [details[1]]
            elif what == "ended":
                head = await log.head(str(details[0]))
                assert (head.closed, head.seq) == (True, details[1])
            elif what == "claimed":
                assert (await log.claim(str(details[0]))).fence > int(details[1])
        for row in await log.runs("default", limit=1_000_000):
            await check_whole(log, row.run_id)
        for run_id in await unfinished(log):
            await check_goes_on(log, run_id)
        await log.tidy()


async def check_created(log: JournalLog, run_id: str) -> None:
    again = await log.create(
        NewRun(run_id="another", key=run_id, fingerprint="f"), RunStarted(agent="a", thread_id="t", input=())
    )
    assert (again.run_id, again.new) == (run_id, False)


async def check_record(log: JournalLog, run_id: str, seq: int, text: str) -> None:
    (record,) = await log.read(run_id, after=seq - 1, limit=1)
    assert (record.seq, record.event) == (seq, TextDelta(text=text))


async def check_whole(log: JournalLog, run_id: str) -> None:
    head = await log.head(run_id)
    records = await log.read(run_id, limit=head.seq + 10)
    assert [record.seq for record in records] == list(range(1, head.seq + 1))
    assert await log.state(run_id) == fold(records, initial(run_id))


async def check_goes_on(log: JournalLog, run_id: str) -> None:
    before = (await log.head(run_id)).seq
    writer = log.writer(await log.claim(run_id))
    await writer.commit(TextDelta(text="on"))
    assert (await log.head(run_id)).seq == before + 1
    await check_whole(log, run_id)


@pytest.mark.parametrize(
    ("life", "durability", "stride", "at_least"),
    [
        pytest.param("bytes", "journal", 1, 500, marks=pytest.mark.slow),
        ("bytes", "journal", 5, 500),
        ("bytes", "fsync", 17, 500),
        ("calls", "journal", 1, 40),
        ("calls", "fsync", 1, 60),
    ],
)
def test_killed_at_every_step_of_its_writing_nothing_acknowledged_is_lost(
    place: Path, life: str, durability: str, stride: int, at_least: int
) -> None:
    asyncio.run(check(place / "template", []))
    for leftover in (place / "template").glob("*.journal"):
        leftover.unlink()
    first, closed = 0, False
    while not closed:
        numbers = range(first, first + 40 * stride, stride)
        command = [life, str(place), durability, str(numbers.start), str(numbers.stop), str(stride)]
        subprocess.run([sys.executable, str(CHILD), *command], check=True, timeout=60)
        for steps in numbers:
            asyncio.run(check(place / str(steps), _acks(place / f"{steps}.acks")))
        closed, first = _closed(place / f"{numbers[-1]}.acks"), numbers.stop
    assert first > at_least


def _acks(path: Path) -> Acks:
    return read_acks(path.read_bytes()) if path.exists() else []


def _closed(path: Path) -> bool:
    return ["closed"] in _acks(path)


def test_killed_at_random_moments_nothing_acknowledged_is_lost(place: Path) -> None:
    rng = random.Random(7)
    acks: Acks = []
    for seed in range(8):
        child = subprocess.Popen([sys.executable, str(CHILD), "forever", str(place), str(seed)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        data = os.read(child.stdout.fileno(), 65536)
        assert data.startswith(b'["up"]'), "the child did not come up"
        end = time.monotonic() + rng.uniform(0.0, 0.4)
        while time.monotonic() < end:
            data += os.read(child.stdout.fileno(), 65536)
        os.kill(child.pid, signal.SIGKILL)
        data += child.stdout.read()
        child.stdout.close()
        assert child.wait(10) == -signal.SIGKILL
        acks += read_acks(data)
        asyncio.run(check(place, read_acks(data)))
    asyncio.run(check(place, acks))
    assert len(acks) > 500
