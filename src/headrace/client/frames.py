"""What a server sends, as values: `Record`, `Snapshot`, `Skipped`. Unknown event types are kept as `Skipped`, so that
an older client follows a newer server without losing its cursor."""

from typing import Any

import msgspec

from headrace.errors import ProtocolBroken
from headrace.events import EVENT_TYPES, Record
from headrace.state import RunState

SNAPSHOT = "run.snapshot"


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Records up to `as_of_seq` are no longer kept; this is what they had made of the run."""

    as_of_seq: int
    state: RunState


class Arrived(msgspec.Struct, frozen=True, kw_only=True):
    """A record, and how many it stands for: a merged delta covers `n` seqs, `record.seq` being the last."""

    record: Record
    n: int = 1


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """Up to `seq` there was something that this stream does not show."""

    seq: int


Frame = Arrived | Snapshot | Skipped


class _Stamp(msgspec.Struct):
    ts: int = 0
    n: int = 1


_stamps = msgspec.json.Decoder(_Stamp)
_snapshots = msgspec.json.Decoder(Snapshot)
_events: dict[str, msgspec.json.Decoder[Any]] = {name: msgspec.json.Decoder(cls) for name, cls in EVENT_TYPES.items()}


def read_record(run_id: str, seq: int, kind: str, data: bytes) -> Frame:
    """A record from its event's type and the JSON of its data, `ts` and perhaps `n` included.

    Raises:
        ProtocolBroken: the data is not what that type holds.
    """
    if kind not in _events:
        return Skipped(seq=seq)
    try:
        stamp = _stamps.decode(data)
        event = _events[kind].decode(b'{"type":"' + kind.encode() + b'",' + data[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise ProtocolBroken(f"Record {seq} of run {run_id} ({kind}) cannot be read: {exc}.") from exc
    return Arrived(record=Record(run_id=run_id, seq=seq, ts=stamp.ts, event=event), n=stamp.n)


def read_snapshot(data: bytes) -> Snapshot:
    """Raises ProtocolBroken for anything else than `{"as_of_seq":…,"state":…}`."""
    try:
        return _snapshots.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise ProtocolBroken(f"A snapshot cannot be read: {exc}.") from exc


def read_state(data: bytes) -> RunState:
    """Raises ProtocolBroken."""
    try:
        return msgspec.json.decode(data, type=RunState)
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise ProtocolBroken(f"A run's state cannot be read: {exc}.") from exc


def read_seq(text: str) -> int:
    """An id as a cursor. Raises ProtocolBroken when it is none."""
    if not (text.isascii() and text.isdecimal()):
        raise ProtocolBroken(f"{text[:40]!r} is not a seq.")
    return int(text)
