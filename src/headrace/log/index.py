"""The archive: ended runs in SQLite, beside the journal.

Tables and what changes them are in sealed.py. Written by one thread, read by another: WAL lets them. Nothing here
knows of live runs.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from headrace.errors import LogCorrupt
from headrace.log.disk import Disk
from headrace.log.entries import split_frames
from headrace.log.live import LiveRun
from headrace.log.ports import Head, NewRun, RunInfo
from headrace.log.sealed import FRAMES_PER_ROW, drop_old, insert, prepare
from headrace.state import RunState

T = TypeVar("T")
Keys = dict[str, tuple[int, int]]


class Index:
    """`ports`-shaped reads are coroutines; `seal`, `age` and `checkpoint` change the file, in the writer's thread."""

    def __init__(self, path: Path, *, disk: Disk, full_sync: bool) -> None:
        self._path = path
        self._disk = disk
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="headrace-index-write")
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="headrace-index-read")
        self._write_db = self._connect("FULL" if full_sync else "NORMAL")
        self._read_db = self._connect("NORMAL")
        self._newest: str = self._read_db.execute("SELECT coalesce(max(run_id), '') FROM runs").fetchone()[0]

    def _connect(self, synchronous: str) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute(f"PRAGMA synchronous={synchronous}")
            db.execute("PRAGMA busy_timeout=5000")
            prepare(db)
        except sqlite3.DatabaseError as exc:
            db.close()
            raise LogCorrupt(
                f"{self._path} cannot be read: {exc}",
                hint="Move the file away to start without the runs that have ended; running ones are in the journal.",
            ) from exc
        return db

    def close(self) -> None:
        """Wait for what is under way and close."""
        self._writing.shutdown()
        self._reading.shutdown()
        self._read_db.close()
        self._write_db.close()

    # Changing

    async def seal(self, runs: Sequence[tuple[LiveRun, RunState]]) -> None:
        """Take in ended runs, all or none."""
        await self._change(partial(insert, runs=runs))
        self._newest = max(self._newest, *(run.id for run, _ in runs))

    async def age(self, *, frames_before: int, forget_before: int, oldest_segment: int) -> None:
        """Drop the records of runs that ended before one time (Unix ms), and the runs that ended before another."""
        await self._change(
            partial(
                drop_old,
                frames_before=frames_before,
                forget_before=forget_before,
                oldest_segment=oldest_segment,
            )
        )

    async def checkpoint(self) -> bool:
        """Bring everything sealed so far into the file itself, synced. False when a reader was in the way."""
        return await asyncio.get_running_loop().run_in_executor(self._writing, self._checkpoint)

    def _checkpoint(self) -> bool:
        busy, _, _ = self._write_db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not busy

    async def _change(self, change: Callable[[sqlite3.Connection], object]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._writing, self._transact, change)

    def _transact(self, change: Callable[[sqlite3.Connection], object]) -> None:
        db = self._write_db
        db.execute("BEGIN IMMEDIATE")
        try:
            change(db)
            self._disk.commit(db)
        except BaseException:
            db.rollback()
            raise

    # Reading

    def holds(self, run_id: str) -> bool:
        """Whether a run was sealed, also if it is forgotten by now. Waits: for recovery only."""
        query = "SELECT 1 FROM runs WHERE run_id = ?1 UNION ALL SELECT 1 FROM forgotten WHERE run_id = ?1"
        return self._read_db.execute(query, (run_id,)).fetchone() is not None

    async def head(self, run_id: str) -> Head | None:
        row = await self._one("SELECT seq, first FROM runs WHERE run_id = ?", run_id)
        return None if row is None else Head(seq=row[0], first=row[1], closed=True)

    async def state(self, run_id: str) -> RunState | None:
        row = await self._one("SELECT state FROM states WHERE run_id = ?", run_id)
        return None if row is None else msgspec.json.decode(row[0], type=RunState)

    async def info(self, run_id: str) -> RunInfo | None:
        row = await self._one("SELECT info FROM runs WHERE run_id = ?", run_id)
        return None if row is None else msgspec.json.decode(row[0], type=RunInfo)

    async def keys(self, run_id: str) -> Keys | None:
        row = await self._one("SELECT keys FROM runs WHERE run_id = ?", run_id)
        return None if row is None else msgspec.json.decode(row[0], type=Keys)

    async def by_id(self, run_id: str) -> NewRun | None:
        if run_id > self._newest:
            return None  # ids grow with time, so a new one is looked up for nothing
        return _new(await self._one("SELECT run_id, tenant, key, fingerprint FROM runs WHERE run_id = ?", run_id))

    async def by_key(self, tenant: str, key: str) -> NewRun | None:
        query = "SELECT run_id, tenant, key, fingerprint FROM runs WHERE tenant = ? AND key = ?"
        return _new(await self._one(query, tenant, key))

    async def frames(self, run_id: str, after: int, limit: int) -> list[bytes] | None:
        if await self.head(run_id) is None:
            return None
        query = "SELECT first, data FROM frames WHERE run_id = ? AND last > ? ORDER BY first LIMIT ?"
        rows = await self._all(query, run_id, after, limit // FRAMES_PER_ROW + 2)
        frames: list[bytes] = []
        for first, data in rows:
            frames += split_frames(data)[max(after + 1 - first, 0) :]
        return frames[: max(limit, 0)]

    async def runs(self, tenant: str, thread_id: str | None, before: str | None, limit: int) -> list[RunInfo]:
        query, values = "SELECT info FROM runs WHERE tenant = ?", [tenant]
        if thread_id is not None:
            query, values = query + " AND thread_id = ?", [*values, thread_id]
        if before is not None:
            query, values = query + " AND run_id < ?", [*values, before]
        rows = await self._all(query + " ORDER BY run_id DESC LIMIT ?", *values, limit)
        return [msgspec.json.decode(row[0], type=RunInfo) for row in rows]

    async def _one(self, query: str, *values: str | int) -> tuple[Any, ...] | None:
        return await self._read(lambda db: db.execute(query, values).fetchone())

    async def _all(self, query: str, *values: str | int) -> list[tuple[Any, ...]]:
        return await self._read(lambda db: db.execute(query, values).fetchall())

    async def _read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._reading, read, self._read_db)


def _new(row: tuple[Any, ...] | None) -> NewRun | None:
    return None if row is None else NewRun(run_id=row[0], tenant=row[1], key=row[2], fingerprint=row[3])
