"""Reading a run that is still growing. Written once, above the ports.

A follower holds a cursor, not a queue: it asks the log for what came after the cursor whenever it is woken and its
sink has room, and otherwise costs nothing. So a slow reader cannot make the server's memory grow, and a reader that
comes back continues where it was. Order: subscribe, then read, then wait; a lost wake-up costs a poll, not a record.

Two ways to use it: `Follower` pushes frames into a sink from the log's own tick (the hot path, no task and no queue);
`follow` is an async iterator of records for everybody else.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from headrace.events import TERMINAL_TYPES, Record
from headrace.log.ports import Log
from headrace.state import RunState
from headrace.wire.codec import decode_record

BATCH_BYTES = 16 * 1024
"""What a sink is offered at once at most, unless a single frame is larger."""

READ_FRAMES = 1000
"""How many frames are read from the store at once."""

_ONE_TICK = 8  # frames that are surely all there are

BATCHES_PER_WAKE = 16
"""After so many batches in a row the loop gets a turn: a long replay must not hold up everybody's tokens."""

_TERMINALS = tuple(name.encode() for name in TERMINAL_TYPES)


def _bounded(frames: Sequence[bytes]) -> Sequence[bytes]:
    """The first frames, as many as fit into a batch; at least one."""
    size = 0
    for count, frame in enumerate(frames):
        size += len(frame)
        if size > BATCH_BYTES and count:
            return frames[:count]
    return frames


def is_terminal(frame: bytes) -> bool:
    """Whether a frame is the run's last."""
    return frame.startswith(_TERMINALS, frame.index(b"\n") + 8)


class Sink(Protocol):
    """Where a follower's frames go. Neither method may wait."""

    def frames(self, frames: Sequence[bytes]) -> bool:
        """Take these frames. False means no more for now: call the follower's `pump` when there is room again."""
        ...

    def snapshot(self, state: RunState) -> bool:
        """The log no longer holds what follows the cursor: here is everything up to `state.seq` instead."""
        ...

    def end(self) -> None:
        """The terminal record has been given; nothing follows."""
        ...

    def fail(self, error: Exception) -> None:
        """The log could not be read."""
        ...


class Follower:
    """A cursor on one run. `start` it, `pump` it when the sink has room again, `close` it."""

    __slots__ = ("_blocked", "_closed", "_log", "_reading", "_sink", "_unsubscribe", "cursor", "run_id")

    def __init__(self, log: Log, run_id: str, after: int, sink: Sink) -> None:
        self.run_id = run_id
        self.cursor = after
        self._log = log
        self._sink = sink
        self._unsubscribe: Callable[[], None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._blocked = False
        self._closed = False

    def start(self) -> None:
        self._unsubscribe = self._log.subscribe(self.run_id, self._wake)
        self._wake()

    def pump(self) -> None:
        """The sink has room again."""
        self._blocked = False
        self._wake()

    def close(self) -> None:
        """Nothing reaches the sink afterwards."""
        self._closed = True
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        if self._reading is not None and self._reading is not asyncio.current_task():
            self._reading.cancel()
        self._reading = None

    def block(self) -> None:
        """The sink has become busy by itself (a timer of its own wrote): nothing until `pump`."""
        self._blocked = True

    def _wake(self) -> None:
        if self._blocked or self._reading or self._closed:
            return
        frames = self._log.recent(self.run_id, self.cursor)
        if frames and (len(frames) == 1 or (len(frames) <= _ONE_TICK and sum(map(len, frames)) <= BATCH_BYTES)):
            self._give(frames)  # the usual case: what this tick brought, and nothing after it
        elif frames is None or frames:
            self._go_on()

    def _go_on(self) -> None:
        """Give batch after batch until the head, or until the sink has had enough, or for now."""
        for _ in range(BATCHES_PER_WAKE):
            if self._blocked or self._closed:
                return
            frames = self._log.recent(self.run_id, self.cursor)
            if frames is None:
                # Not in memory: read it, off the tick. The task is this follower's own and ends with it.
                self._reading = asyncio.get_running_loop().create_task(self._catch_up())
                return
            if not frames:
                return
            self._give(_bounded(frames))
        asyncio.get_running_loop().call_soon(self._wake)

    def _give(self, frames: Sequence[bytes]) -> None:
        self.cursor += len(frames)
        self._blocked = not self._sink.frames(frames)
        if is_terminal(frames[-1]):
            self.close()
            self._sink.end()

    async def _catch_up(self) -> None:
        try:
            await self._read_on()
        except asyncio.CancelledError:
            raise
        except Exception as exc:
            self.close()
            self._sink.fail(exc)
            return
        self._reading = None
        self._wake()

    async def _read_on(self) -> None:
        """Read once from the store: a batch, or a snapshot where what follows the cursor is gone."""
        head = await self._log.head(self.run_id)
        if self.cursor + 1 < head.first:
            state = await self._log.state(self.run_id)
            self.cursor = state.seq
            self._blocked = not self._sink.snapshot(state)
            if state.ended:
                await self._give_terminal(state)
            return
        frames = await self._log.read_frames(self.run_id, after=self.cursor, limit=READ_FRAMES)
        while frames and not (self._blocked or self._closed):
            batch = _bounded(frames)
            self._give(batch)
            frames = frames[len(batch) :]

    async def _give_terminal(self, state: RunState) -> None:
        """The terminal record outlives trimming, so that a late client gets its end and not only a state."""
        self.cursor = state.seq - 1
        frames = await self._log.read_frames(self.run_id, after=self.cursor, limit=1)
        if frames:
            self._give(frames)
        else:
            self.close()
            self._sink.end()


class _Queue:
    """The sink behind `follow`: takes one batch, then waits until it has been consumed."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.batch: list[bytes] = []
        self.state: RunState | None = None
        self.ended = False
        self.error: Exception | None = None

    def frames(self, frames: Sequence[bytes]) -> bool:
        self.batch.extend(frames)
        self.ready.set()
        return False

    def snapshot(self, state: RunState) -> bool:
        self.state = state
        self.ready.set()
        return False

    def end(self) -> None:
        self.ended = True
        self.ready.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self.ready.set()


async def follow(log: Log, run_id: str, *, after: int = 0) -> AsyncIterator[Record | RunState]:
    """Every record after `after`, to the terminal one; a RunState first where older records are gone.

    Close the iterator (`contextlib.aclosing`) to stop early.

    Raises:
        UnknownRun: there is no such run.
    """
    await log.head(run_id)
    queue = _Queue()
    follower = Follower(log, run_id, after, queue)
    follower.start()
    try:
        while True:
            await queue.ready.wait()
            queue.ready.clear()
            state, batch = queue.state, queue.batch
            queue.state, queue.batch = None, []
            if state is not None:
                yield state
            for frame in batch:
                yield decode_record(run_id, frame)
            if queue.error is not None:
                raise queue.error
            if queue.ended:
                return
            follower.pump()
    finally:
        follower.close()
