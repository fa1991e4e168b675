"""The journal's entries as bytes. No I/O. The format is described in journal.py.

Reading never guesses: an entry is whole and its checksum fits, or it is `Damage`, from where it should have begun to
the next whole entry (or the end). A payload cannot look like an entry, since JSON has no line breaks.
"""

import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Literal, get_args

import msgspec

from headrace.log.batch import Batch
from headrace.log.live import LiveRun
from headrace.log.ports import NewRun
from headrace.state import RunState

MAGIC = b"headrace journal 1\n"
MAX_HEADER = 512

Kind = Literal["new", "claim", "records", "keyed", "carried"]
_KINDS: dict[bytes, Kind] = {kind.encode(): kind for kind in get_args(Kind)}
_HEADER = re.compile(rb"([0-9a-f]{8}) (new|claim|records|keyed|carried) ([!-~]+) (\d{1,12})\n")
_WORD = re.compile(rb"[A-Za-z0-9_.:-]{1,128}")
_json = msgspec.json.Encoder()


class Begun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first line of a `new` entry."""

    run: NewRun
    fence: int = 0


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    fence: int


class Keyed(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a `keyed` entry: which keys stand for which seqs (first, last) among its records."""

    keys: dict[str, tuple[int, int]]


class Carried(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first line of a `carried` entry: all that is known of a run but its frames, which follow from `first` on."""

    run: NewRun
    fence: int
    first: int
    keys: dict[str, tuple[int, int]]
    state: RunState | None = None


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    kind: Kind
    run_id: str
    payload: bytes
    offset: int


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes from `start` to `end` that are no entry. `words` in them may be ids of runs."""

    start: int
    end: int
    words: frozenset[str]


def _entry(kind: bytes, run_id: str, payload: bytes) -> bytes:
    body = b"%b %b %d\n%b" % (kind, run_id.encode(), len(payload), payload)
    return b"%08x %b" % (zlib.crc32(body), body)


def new_entry(run: LiveRun, frame: bytes) -> bytes:
    begun = _json.encode(Begun(run=run.new, fence=run.fence))
    return _entry(b"new", run.id, b"%b\n%b" % (begun, frame))


def claim_entry(run: LiveRun) -> bytes:
    return _entry(b"claim", run.id, _json.encode(Claimed(fence=run.fence)) + b"\n")


def records_entry(run: LiveRun, frames: list[bytes]) -> bytes:
    """All that one tick adds to a run: whole or not at all."""
    return _entry(b"records", run.id, frames[0] if len(frames) == 1 else b"".join(frames))


def keyed_entry(run: LiveRun, frames: list[bytes], keys: Mapping[str, tuple[int, int]]) -> bytes:
    return _entry(b"keyed", run.id, b"%b\n%b" % (_json.encode(Keyed(keys=dict(keys))), b"".join(frames)))


def carried_entry(run: LiveRun) -> bytes:
    """A whole run once more, so that older segments can go."""
    state = run.folded if run.first > 1 else None
    facts = Carried(run=run.new, fence=run.fence, first=run.first, keys=run.keys, state=state)
    return _entry(b"carried", run.id, b"%b\n%b" % (_json.encode(facts), b"".join(run.frames)))


def batch_entries(batch: Batch) -> Iterator[bytes]:
    """What one tick adds to the journal."""
    for run in batch.carried:
        yield carried_entry(run)
    for run, frame in batch.created:
        yield new_entry(run, frame)
    for run, _ in batch.claims:
        yield claim_entry(run)
    for run, frames in batch.taken:
        if run.fresh_keys:
            keys, run.fresh_keys = run.fresh_keys, {}
            yield keyed_entry(run, frames, keys)
        else:
            yield records_entry(run, frames)


def split_frames(data: bytes) -> list[bytes]:
    """The frames in a run of them. A frame ends with the only blank line in it."""
    return [frame + b"\n\n" for frame in data.split(b"\n\n")[:-1]]


def split_payload(payload: bytes) -> tuple[bytes, list[bytes]]:
    """The first line of a payload, and the frames after it."""
    line, _, frames = payload.partition(b"\n")
    return line, split_frames(frames)


def read_entries(data: bytes) -> Iterator[Entry | Damage]:
    """Everything in a segment, in order."""
    offset = len(MAGIC)
    if not data.startswith(MAGIC) and data:
        offset = _resume(data, 0)
        yield _damage(data, 0, offset)
    while offset < len(data):
        entry, end = _parse(data, offset)
        if entry is None:
            end = _resume(data, offset + 1)
            yield _damage(data, offset, end)
        else:
            yield entry
        offset = end


def _parse(data: bytes, offset: int) -> tuple[Entry | None, int]:
    header = _HEADER.match(data, offset, offset + MAX_HEADER)
    if header is None:
        return None, offset
    end = header.end() + int(header[4])
    if end > len(data) or zlib.crc32(data[offset + 9 : end]) != int(header[1], 16):
        return None, offset
    payload = data[header.end() : end]
    return Entry(kind=_KINDS[header[2]], run_id=header[3].decode(), payload=payload, offset=offset), end


def _resume(data: bytes, offset: int) -> int:
    """Where the next whole entry begins, or the end."""
    for header in _HEADER.finditer(data, offset):
        if _parse(data, header.start())[0] is not None:
            return header.start()
    return len(data)


def _damage(data: bytes, start: int, end: int) -> Damage:
    words = frozenset(word.decode() for word in _WORD.findall(data, start, end))
    return Damage(start=start, end=end, words=words)
