"""What the parts of the contract share: a log that is opened for a test, and short names for what they do with it."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from headrace.events import Record, RunFinished, RunStarted, TextDelta
from headrace.log.ports import Claim, Log, NewRun
from headrace.messages import Message
from headrace.wire.codec import frame_seq

DEADLINE_S = 20.0
DONE = RunFinished(status="completed", output="done")


class Contract:
    """A part of `LogContract`."""

    survives = True

    def open(self, *, max_records: int = 100_000) -> Log:
        raise NotImplementedError


C = TypeVar("C", bound="Contract")
AnyTest = Callable[[C, Log], Coroutine[Any, Any, None]]


def promise(test: AnyTest[C]) -> Callable[[C], None]:
    """Run an async test with an open log and a deadline."""

    def run(self: C) -> None:
        asyncio.run(_with_log(self, test))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


async def _with_log(contract: C, test: AnyTest[C]) -> None:
    async with asyncio.timeout(DEADLINE_S), contract.open() as log:
        await test(contract, log)


def started(text: str = "hello", thread_id: str = "t1") -> RunStarted:
    return RunStarted(agent="demo", thread_id=thread_id, input=(Message(role="user", content=text),))


def run_id(number: int) -> str:
    """Ids that sort like their numbers, as UUIDv7 do by time."""
    return f"01990000-0000-7000-8000-{number:012x}"


async def begin(log: Log, number: int = 1, *, tenant: str = "default", thread_id: str = "t1") -> Claim:
    created = await log.create(NewRun(run_id=run_id(number), tenant=tenant), started(thread_id=thread_id), claim=True)
    assert created.claim is not None
    return created.claim


def words(*texts: str) -> list[TextDelta]:
    return [TextDelta(text=text) for text in texts]


async def frames_of(log: Log, run: str) -> list[bytes]:
    """All that is retained, read in pages."""
    frames: list[bytes] = []
    while page := await log.read_frames(run, after=frame_seq(frames[-1]) if frames else 0, limit=7):
        frames += page
    return frames


async def unfinished(log: Log, tenant: str = "default") -> list[str]:
    """A tenant's runs without an end, oldest first."""
    return sorted(row.run_id for row in await log.runs(tenant, limit=1_000_000) if row.ended_ts is None)


def text_of(records: Sequence[Record]) -> str:
    return "".join(record.event.text for record in records if isinstance(record.event, TextDelta))


class Told:
    """An owner of a run (log.ports.Owner) that keeps what it hears: client requests, and "lost"."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[Record | str] = asyncio.Queue()

    def notify(self, record: Record) -> None:
        self.heard.put_nowait(record)

    def lose(self) -> None:
        self.heard.put_nowait("lost")
