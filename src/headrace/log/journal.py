"""The embedded durable log: an append-only journal for records, SQLite beside it for runs that have ended.

The directory

    lock                  held by the one process that owns the log; contains its pid
    0000000001.journal …  segments, appended to in order
    index.db (-wal, -shm) the archive of ended runs, see index.py
    ballast               room for last words when the disk is full, see ballast.py

A segment is text to read with `less`. It begins with the line `headrace journal 1`, then come entries:

    5f0e1b2c records 0192aa2d-… 137⏎         header: checksum, kind, run id, payload length in bytes
    id: 4⏎                                    payload: for records their SSE frames, as the socket gets them
    event: text.delta⏎
    data: {"text":"Hello","ts":1764424800000}⏎
    ⏎

    kind     payload
    new      {"run":{"run_id":…,"tenant":…,"key":…,"fingerprint":…},"fence":1}⏎ and the frame of record 1
    claim    {"fence":2}⏎                     a worker has claimed the run
    records  frames                           what one loop tick added to one run
    keyed    {"keys":{"k":[4,5]}}⏎ and frames  the same, some of them appended under a key (its first and last seq)
    carried  {"run":…,"fence":…,"first":…,"keys":…,"state":…}⏎ and frames   a whole run once more; replaces all before

The checksum is the CRC-32 of everything after it: kind to end of payload, as eight hex digits. An entry counts
whole or not at all. One tick's entries are one write; the tick is acknowledged when that write has returned
(`fsync`: and the file is synced), so a torn tail was never acknowledged and recovery cuts it off. Damage anywhere
else is reported, and the runs concerned raise LogCorrupt instead of continuing over a hole.

A run that has ended is sealed: written to the archive in one transaction, then dropped from memory. A segment
none of whose runs is outside the archive is deleted whole, after the archive was synced. Recovery skips sealed runs.
When little in an old segment is still needed (runs that wait for a person for days), it is carried over into the
current one, so that the journal stays small: at most an eighth of what is written is written again.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from headrace.clock import wall_ms
from headrace.errors import HeadraceError, LogCorrupt, LogUnavailable
from headrace.log.ballast import Ballast
from headrace.log.batch import Batch
from headrace.log.disk import Disk
from headrace.log.entries import batch_entries
from headrace.log.index import Index
from headrace.log.lock import hold
from headrace.log.ports import NewRun, RunInfo
from headrace.log.recovery import Recovery
from headrace.log.retention import Retention
from headrace.log.sealing import SealingLog
from headrace.log.segments import Segments

log = logging.getLogger(__name__)

SEGMENT_BYTES = 64 * 1024 * 1024
_HINT = "Free some space on the disk of the data directory; writing is tried again by itself."


class JournalLog(SealingLog):
    """See `ports.Log` and the top of this module. Use as an async context manager; entering it recovers.

    `durability`: `journal` writes in the loop, once per tick, and survives kill -9; `fsync` writes and syncs in a
    thread and survives a power cut. `segment_bytes`: size at which a new segment begins. `tidy_every_s`: seconds
    between two rounds of sealing and forgetting. `probe_every_s`: seconds between two tries of a full disk.
    `clock`: Unix milliseconds. `disk`: the system calls, for tests that fail them.

    Raises on entering:
        LogLocked: another process has the directory.
        LogCorrupt: the archive cannot be read.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        durability: Literal["journal", "fsync"] = "journal",
        retention: Retention | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        tidy_every_s: float = 5.0,
        probe_every_s: float = 0.5,
        clock: Callable[[], int] = wall_ms,
        disk: Disk | None = None,
    ) -> None:
        super().__init__(
            retention=retention or Retention(),
            tidy_every_s=tidy_every_s,
            carry_bytes=segment_bytes // 8,
            clock=clock,
        )
        self._path = Path(path)
        self._disk = disk or Disk()
        self._fsync = durability == "fsync"
        self._ballast = Ballast(self._path / "ballast", disk=self._disk)
        self._segments = Segments(self._path, disk=self._disk, segment_bytes=segment_bytes, sync=self._fsync)
        self._writing: ThreadPoolExecutor | None = None
        self._damaged: dict[str, LogCorrupt] = {}
        self._in_trouble = False
        self._probe_every_s = probe_every_s
        self._probe_at = 0.0
        self._open = ExitStack()

    @property
    def writable(self) -> bool:
        return not self._in_trouble

    # Life

    async def __aenter__(self) -> Self:
        with ExitStack() as opening:
            self._path.mkdir(parents=True, exist_ok=True)
            opening.callback(os.close, hold(self._path / "lock"))
            self._index = Index(self._path / "index.db", disk=self._disk, full_sync=self._fsync)
            opening.callback(self._index.close)
            self._archive = self._index
            opening.callback(self._segments.close)
            self._recover()
            self._in_trouble = not self._ballast.restore()
            if self._fsync:
                self._writing = ThreadPoolExecutor(1, thread_name_prefix="headrace-journal")
                opening.callback(self._writing.shutdown)
            await super().__aenter__()
            self._open = opening.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._open:
            await super().__aexit__(kind, exc, trace)

    def _recover(self) -> None:
        found = Recovery(self._path, self._index, self._retention)
        self._damaged = found.damaged
        for run in found.runs.values():
            self._remember(run)
            if run.ended:
                self._note_ended(run)
        for number, run_id in found.pins:
            self._segments.pin(number, run_id)
        for number in found.damaged_segments:
            self._segments.pin(number, "(damaged)")
        self._segments.start(*found.end)

    # Writing

    def _write(self, batch: Batch) -> None:
        if not self._has_room():
            self._commits.refuse(batch, LogUnavailable("the disk is full or failing", hint=_HINT))
        data = b"".join(batch_entries(batch))
        if not data:
            self._commits.land(batch)
        elif self._writing is not None:
            loop = asyncio.get_running_loop()
            loop.run_in_executor(self._writing, self._segments.write, data).add_done_callback(
                partial(self._answered, batch)
            )
        else:
            try:
                segment = self._segments.write(data)
            except Exception as exc:
                self._lost(batch, exc)
            else:
                self._stored(batch, segment)

    def _answered(self, batch: Batch, written: "asyncio.Future[int]") -> None:
        exc = written.exception()
        if isinstance(exc, Exception):
            self._lost(batch, exc)
        else:
            self._stored(batch, written.result())

    def _stored(self, batch: Batch, segment: int) -> None:
        self._segments.unpin(run.id for run in batch.carried)
        for run in batch.carried:
            run.segment = 0
        for run in (*batch.carried, *batch.touched()):
            if run.segment != segment:
                run.segment = segment
                self._segments.pin(segment, run.id)
        self._commits.land(batch)

    def _lost(self, batch: Batch, exc: Exception) -> None:
        log.error("the journal in %s could not be written: %s", self._path, exc)
        self._in_trouble = True
        self._ballast.release()
        cause = LogUnavailable(f"the journal could not be written: {exc}", hint=_HINT)
        cause.__cause__ = exc
        self._commits.crash(batch, cause)

    def _has_room(self) -> bool:
        return not self._in_trouble or self._probe()

    def _probe(self) -> bool:
        """Whether there is room again, looked up at most once per `probe_every_s`."""
        now = asyncio.get_running_loop().time()
        if now < self._probe_at:
            return False
        self._probe_at = now + self._probe_every_s
        self._in_trouble = not self._ballast.restore()
        return not self._in_trouble

    # Runs that cannot be read

    async def find(self, run_id: str) -> RunInfo | None:
        found = await super().find(run_id)
        if found is None and run_id in self._damaged:
            raise self._unknown(run_id)
        return found

    async def _known(self, run: NewRun) -> NewRun | None:
        if run.run_id in self._damaged:
            raise self._unknown(run.run_id)
        return await super()._known(run)

    def _unknown(self, run_id: str) -> HeadraceError:
        if damage := self._damaged.get(run_id):
            return LogCorrupt(f"run {run_id} cannot be read: {damage.message}", hint=damage.hint)
        return super()._unknown(run_id)
