"""Reading runs from Redis: those that other workers have, and those that have ended."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from headrace.errors import LogCorrupt
from headrace.log.live import FOLD_STEP, info
from headrace.log.ports import Head, NewRun, RunInfo
from headrace.log.redis.deployment import Deployment
from headrace.log.redis.wire import Answer
from headrace.state import RunState, fold, initial
from headrace.wire.codec import decode_record

REMEMBERED = 256
"""Folded states and owners of this many runs are kept, so that the next look costs only what is new."""

K = TypeVar("K")
V = TypeVar("V")


class Remembered(OrderedDict[K, V]):
    """The latest values of a few."""

    def keep(self, key: K, value: V) -> None:
        self[key] = value
        self.move_to_end(key)
        if len(self) > REMEMBERED:
            self.popitem(last=False)


def numbered(seq: int, body: bytes) -> bytes:
    """The frame of a record from what Redis keeps of it."""
    return b"id: %d\n%b" % (seq, body)


def body_of(frame: bytes) -> bytes:
    """What Redis keeps of a frame: the seq is the entry's id."""
    return frame[frame.index(b"\n") + 1 :]


def frames_of(entries: Sequence[tuple[bytes, Sequence[bytes]]]) -> list[bytes]:
    """The frames in a range of a stream."""
    return [b"id: %b\n%b" % (entry_id[:-2], fields[1]) for entry_id, fields in entries]


class StoredRuns:
    """See `livereads.Stored`. Everything raises LogUnavailable when Redis does not answer in time."""

    def __init__(self, at: Deployment) -> None:
        self._at = at
        self._servers = at.reads
        self._keys = at.keys
        self._folded: Remembered[str, RunState] = Remembered()
        self._tenants: Remembered[str, str] = Remembered()

    async def head(self, run_id: str) -> Head | None:
        known = self._meta(run_id, b"last", b"first", b"closed", b"terminal")
        there = self._ask(self._keys.log(run_id), b"EXISTS")
        last, first, closed, terminal = await self._at.read(known)
        if last is None:
            return None
        if terminal is not None and not await self._at.read(there):
            first = last  # the records are gone, all but the terminal one
        return Head(seq=int(last), first=int(first), closed=closed is not None)

    async def frames(self, run_id: str, after: int, limit: int) -> list[bytes] | None:
        found = await self.frames_and_last(run_id, after, limit)
        return None if found is None else found[0]

    async def frames_and_last(self, run_id: str, after: int, limit: int) -> tuple[list[bytes], int] | None:
        """Frames after a seq, and the head at that moment."""
        known = self._meta(run_id, b"last", b"terminal")
        entries = self.entries(run_id, after, max(limit, 0))
        last, terminal = await self._at.read(known)
        frames = frames_of(await self._at.read(entries))
        if last is None:
            return None
        if not frames and terminal is not None and after < int(last) and limit > 0:
            frames = [numbered(int(last), terminal)]
        return frames, int(last)

    async def state(self, run_id: str) -> RunState | None:
        state = self._folded.get(run_id)
        if state is None:
            (last,) = await self._at.read(self._meta(run_id, b"last"))
            if last is None:
                return None
            state = await self.snapshot(run_id) or initial(run_id)
        while not state.ended:
            frames = frames_of(await self._at.read(self.entries(run_id, state.seq, FOLD_STEP)))
            if not frames:
                break
            state = fold((decode_record(run_id, frame) for frame in frames), state)
        self._folded.keep(run_id, state)
        return state

    async def snapshot(self, run_id: str) -> RunState | None:
        """The state that was stored when records were trimmed, or the run sealed."""
        stored = await self._at.read(self._ask(self._keys.state(run_id), b"GET"))
        return None if stored is None else msgspec.json.decode(stored, type=RunState)

    async def info(self, run_id: str) -> RunInfo | None:
        run, row = await self._at.read(self._meta(run_id, b"run", b"info"))
        if run is None:
            return None
        if row is not None:
            return msgspec.json.decode(row, type=RunInfo)
        state = await self.state(run_id)
        return None if state is None else info(msgspec.json.decode(run, type=NewRun), state)

    async def by_id(self, run_id: str) -> NewRun | None:
        (run,) = await self._at.read(self._meta(run_id, b"run"))
        return None if run is None else msgspec.json.decode(run, type=NewRun)

    async def tenant(self, run_id: str) -> str | None:
        """Asked by every request, and it never changes."""
        if (known := self._tenants.get(run_id)) is not None:
            return known
        (tenant,) = await self._at.read(self._meta(run_id, b"tenant"))
        if tenant is not None:
            self._tenants.keep(run_id, tenant.decode())
        return None if tenant is None else self._tenants[run_id]

    async def listed(self, tenant: str, thread_id: str | None, before: str | None, limit: int) -> list[str]:
        """Ids of runs, newest first. Some may be forgotten by now."""
        key = self._keys.runs(tenant) if thread_id is None else self._keys.thread(tenant, thread_id)
        newest = b"+" if before is None else b"(" + before.encode()
        ids = await self._at.read(
            self._servers.ask(
                key.encode(), (b"ZRANGE", key.encode(), newest, b"-", b"BYLEX", b"REV", b"LIMIT", b"0", b"%d" % limit)
            )
        )
        return [run_id.decode() for run_id in ids]

    def ask_head(self, run_id: str) -> Answer:
        """The last seq, or None."""
        return self._ask(self._keys.meta(run_id), b"HGET", b"last")

    def entries(self, run_id: str, after: int, limit: int) -> Answer:
        """What the stream has after a seq; see `frames_of`."""
        start = b"%d-0" % (min(after, 2**62) + 1)
        key = self._keys.log(run_id).encode()
        return self._servers.ask(key, (b"XRANGE", key, start, b"+", b"COUNT", b"%d" % limit))

    async def terminal(self, run_id: str) -> bytes:
        """The frame of an ended run's last record."""
        head = await self.head(run_id)
        frames = await self.frames(run_id, head.seq - 1, 1) if head else None
        if not frames:
            raise LogCorrupt(f"the end of run {run_id} is missing", hint="Was something deleted from Redis by hand?")
        return frames[0]

    def forget(self, run_id: str) -> None:
        self._folded.pop(run_id, None)

    def _meta(self, run_id: str, *fields: bytes) -> Answer:
        return self._ask(self._keys.meta(run_id), b"HMGET", *fields)

    def _ask(self, key: str, command: bytes, *rest: bytes) -> Answer:
        return self._servers.ask(key.encode(), (command, key.encode(), *rest))
