"""What the journal's segments say about the runs that are not in the archive, after any kind of end."""

import logging
from collections.abc import Iterator
from pathlib import Path

import msgspec

from headrace.errors import LogCorrupt
from headrace.events import TERMINAL_TYPES
from headrace.log.entries import (
    Begun,
    Carried,
    Claimed,
    Damage,
    Entry,
    Keyed,
    read_entries,
    split_frames,
    split_payload,
)
from headrace.log.index import Index
from headrace.log.live import LiveRun
from headrace.log.retention import Retention
from headrace.log.segments import segment_numbers, segment_path
from headrace.wire.codec import frame_seq, frame_type

log = logging.getLogger(__name__)


class Recovery:
    """Reads all segments on construction. `runs` is what to go on with; `end` is where to go on writing.

    `damaged` are runs of which acknowledged records cannot be read: they are served no more.
    """

    def __init__(self, directory: Path, index: Index, retention: Retention) -> None:
        self.runs: dict[str, LiveRun] = {}
        self.damaged: dict[str, LogCorrupt] = {}
        self._damaged_segments: set[int] = set()
        self._pinned: dict[str, set[int]] = {}
        self.end: tuple[int, int] = (1, 0)
        self._index = index
        self._retention = retention
        self._elsewhere: set[str] = set()
        numbers = segment_numbers(directory)
        for number in numbers:
            self._read(segment_path(directory, number), number, last=number == numbers[-1])
        for run_id, error in self.damaged.items():
            self.runs.pop(run_id, None)
            log.error("run %s is not served: %s (%s)", run_id, error, error.code)

    def _read(self, path: Path, number: int, *, last: bool) -> None:
        data = path.read_bytes()
        end = len(data)
        for item in read_entries(data):
            if isinstance(item, Entry):
                self._replay(item, number, path)
            elif last and item.end == len(data):
                end = item.start
                log.warning(
                    "%s: cut off a torn tail of %d bytes after byte %d; it was never acknowledged",
                    path,
                    len(data) - end,
                    end,
                )
            else:
                self._report(item, number, path)
        self.end = (number + 1, 0) if number in self._damaged_segments else (number, end)

    def _report(self, damage: Damage, number: int, path: Path) -> None:
        error = LogCorrupt(
            f"{path} is damaged from byte {damage.start} to {damage.end}",
            hint="The runs with records there cannot be served. The file is kept; check the disk.",
        )
        named = sorted(damage.words & self.runs.keys())
        log.error("%s (%s); runs named there: %s", error, error.code, ", ".join(named) or "none")
        self._damaged_segments.add(number)
        for run_id in named:
            self.damaged.setdefault(run_id, error)

    def _replay(self, entry: Entry, number: int, path: Path) -> None:
        run_id = entry.run_id
        if entry.kind == "carried":
            self._restart(run_id)
        if run_id in self._elsewhere or run_id in self.damaged:
            return
        run = self.runs.get(run_id)
        self._pinned.setdefault(run_id, set()).add(number)
        if run is None and self._index.holds(run_id):
            self._elsewhere.add(run_id)
            return
        try:
            run = _apply(run, entry)
        except (ValueError, KeyError, msgspec.MsgspecError) as exc:
            what = f"{path}, byte {entry.offset}: run {run_id} does not continue there: {exc}"
            self.damaged[run_id] = LogCorrupt(what, hint="A segment is missing or was changed; its file is kept.")
            return
        run.segment = number
        self.runs[run_id] = run
        if len(run.frames) > self._retention.trim_at:
            run.trim(len(run.frames) - self._retention.max_records)

    def _restart(self, run_id: str) -> None:
        """The whole run follows: whatever was said of it before, or was missing, does not matter."""
        self.damaged.pop(run_id, None)
        self.runs.pop(run_id, None)
        self._pinned.pop(run_id, None)

    @property
    def damaged_segments(self) -> set[int]:
        """Segments to keep for whoever wants to look."""
        return self._damaged_segments.union(*(self._pinned.get(run_id, ()) for run_id in self.damaged))

    @property
    def pins(self) -> Iterator[tuple[int, str]]:
        """Which segments hold which runs."""
        return ((number, run_id) for run_id in self.runs for number in self._pinned[run_id])


def _apply(run: LiveRun | None, entry: Entry) -> LiveRun:
    """Raises ValueError (or msgspec's) when the entry does not follow from what came before."""
    if entry.kind == "new":
        return _begin(run, entry)
    if entry.kind == "carried":
        return _carried(entry)
    if run is None:
        raise ValueError("its beginning is missing")
    if entry.kind == "claim":
        run.fence = msgspec.json.decode(entry.payload, type=Claimed).fence
    elif entry.kind == "records":
        _extend(run, split_frames(entry.payload))
    else:
        line, frames = split_payload(entry.payload)
        _extend(run, frames)
        run.keys.update(msgspec.json.decode(line, type=Keyed).keys)
    return run


def _begin(run: LiveRun | None, entry: Entry) -> LiveRun:
    if run is not None:
        raise ValueError("it begins a second time")
    line, frames = split_payload(entry.payload)
    begun = msgspec.json.decode(line, type=Begun)
    run = LiveRun(begun.run, fence=begun.fence)
    _extend(run, frames)
    return run


def _carried(entry: Entry) -> LiveRun:
    line, frames = split_payload(entry.payload)
    facts = msgspec.json.decode(line, type=Carried)
    run = LiveRun(facts.run, fence=facts.fence)
    run.first, run.head, run.keys, run.folded = facts.first, facts.first - 1, facts.keys, facts.state
    _extend(run, frames)
    return run


def _extend(run: LiveRun, frames: list[bytes]) -> None:
    if not frames or frame_seq(frames[0]) != run.head + 1 or frame_seq(frames[-1]) != run.head + len(frames):
        raise ValueError(f"its records do not continue after {run.head}")
    if run.ended:
        raise ValueError("it has ended before")
    run.frames += frames
    run.head = run.last = run.head + len(frames)
    if frame_type(frames[-1]) in TERMINAL_TYPES:
        run.ending = run.ended = True
        run.token = None
