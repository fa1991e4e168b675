"""The process that dies, run by test_journal_kills.py. It acknowledges each thing before the next.

journal_child.py forever DIRECTORY SEED          works until it is killed, acknowledges on standard output
journal_child.py steps DIRECTORY DURABILITY A B STRIDE   for each n from A to B: a child that dies after n steps
"""

import asyncio
import itertools
import json
import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from headrace.events import CancelRequested, RunFinished, RunStarted, TextDelta
from headrace.log.disk import Disk
from headrace.log.journal import JournalLog
from headrace.log.ports import Claim, NewRun, Writer
from headrace.log.retention import Retention
from headrace.testing.disk import DyingDisk

STARTED = RunStarted(agent="a", thread_id="t", input=())
Ack = Callable[..., None]
Durability = Literal["journal", "fsync"]


def acknowledge_to(fd: int) -> Ack:
    def ack(*what: str | int) -> None:
        os.write(fd, json.dumps(what).encode() + b"\n")

    return ack


def journal(path: Path, durability: Durability = "journal", disk: Disk | None = None, size: int = 4000) -> JournalLog:
    retention = Retention(seal_after_s=0.0)
    return JournalLog(
        path, durability=durability, retention=retention, disk=disk, segment_bytes=size, tidy_every_s=0.002
    )


async def forever(path: Path, seed: int) -> None:
    ack = acknowledge_to(1)
    rng = random.Random(seed)
    async with journal(path) as log, asyncio.TaskGroup() as group:
        ack("up")
        for worker in range(5):
            group.create_task(keep_running(log, ack, random.Random(rng.random()), f"{seed:04d}-{worker}"))


async def keep_running(log: JournalLog, ack: Ack, rng: random.Random, name: str) -> None:
    for number in itertools.count():
        run_id = f"{name}-{number:05d}"
        writer = await (begin_early if number % 2 else begin)(log, ack, run_id)
        for step in range(rng.randrange(1, 12)):
            await one_step(log, ack, rng, writer, run_id, step)
        if rng.random() < 0.8:
            await writer.commit(RunFinished(status="completed"))
            ack("ended", run_id, writer.seq)


async def begin(log: JournalLog, ack: Ack, run_id: str) -> Writer:
    created = await log.create(NewRun(run_id=run_id, key=run_id, fingerprint="f"), STARTED, claim=True)
    ack("created", run_id)
    assert created.claim is not None
    return log.writer(created.claim)


async def begin_early(log: JournalLog, ack: Ack, run_id: str) -> Writer:
    """The owner works before the run is stored, and knows from its first commit that it is."""
    owner: list[asyncio.Task[Writer]] = []
    new = NewRun(run_id=run_id, key=run_id, fingerprint="f")
    await log.create(
        new, STARTED, begun=lambda claim: owner.append(asyncio.ensure_future(first_steps(log, ack, claim)))
    )
    ack("created", run_id)
    return await owner[0]


async def first_steps(log: JournalLog, ack: Ack, claim: Claim) -> Writer:
    writer = log.writer(claim)
    writer.emit(TextDelta(text="early"))
    await asyncio.sleep(0)
    await writer.commit(TextDelta(text="steps"))
    ack("record", claim.run_id, 2, "early")
    ack("record", claim.run_id, 3, "steps")
    return writer


async def one_step(log: JournalLog, ack: Ack, rng: random.Random, writer: Writer, run_id: str, step: int) -> None:
    if step == 3:
        records = await log.append(run_id, [CancelRequested()], key="c")
        ack("keyed", run_id, records[0].seq)
    texts = [f"{run_id}/{step}/{part}" + "x" * rng.randrange(60) for part in range(rng.randrange(1, 4))]
    await writer.commit(*(TextDelta(text=text) for text in texts))
    for offset, text in enumerate(texts, writer.seq - len(texts) + 1):
        ack("record", run_id, offset, text)


async def few_bytes(path: Path, durability: Durability, steps: int, ack: Ack) -> None:
    """Every kind of entry once; dies at a byte."""
    async with journal(path, durability, DyingDisk(steps)) as log:
        await one_run(log, ack, "r1")
        ack("claimed", "r1", (await log.claim("r1")).fence)
        await begin_early(log, ack, "r2")
    ack("closed")


async def many_calls(path: Path, durability: Durability, steps: int, ack: Ack) -> None:
    """Rotations, ends, sealing, deleted segments; dies at a system call."""
    async with journal(path, durability, DyingDisk(steps, bytewise=False), size=250) as log:
        for run_id in ("r1", "r2", "r3"):
            writer = await one_run(log, ack, run_id)
            if run_id != "r2":
                await writer.commit(RunFinished(status="completed"))
                ack("ended", run_id, writer.seq)
            await log.tidy()
        await begin_early(log, ack, "r4")
    ack("closed")


async def one_run(log: JournalLog, ack: Ack, run_id: str) -> Writer:
    writer = await begin(log, ack, run_id)
    await writer.commit(TextDelta(text="a"), TextDelta(text="b"))
    ack("record", run_id, 2, "a")
    ack("record", run_id, 3, "b")
    ack("keyed", run_id, (await log.append(run_id, [CancelRequested()], key="c"))[0].seq)
    return writer


def copy_or_link(source: str, target: str) -> None:
    """The ballast never changes while there is room."""
    (os.link if source.endswith("ballast") else shutil.copy)(source, target)


LIVES = {"bytes": few_bytes, "calls": many_calls}


def every_step(life: str, root: Path, durability: Durability, numbers: range) -> None:
    for steps in numbers:
        shutil.copytree(root / "template", root / str(steps), copy_function=copy_or_link)
        child = os.fork()
        if child == 0:
            acks = os.open(root / f"{steps}.acks", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            asyncio.run(LIVES[life](root / str(steps), durability, steps, acknowledge_to(acks)))
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    mode, where, *rest = sys.argv[1:]
    if mode == "forever":
        asyncio.run(forever(Path(where), int(rest[0])))
    else:
        every_step(mode, Path(where), "fsync" if rest[0] == "fsync" else "journal", range(*map(int, rest[1:])))
