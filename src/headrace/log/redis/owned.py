"""What Redis answers to the owner of a run, carried into the run in memory. No I/O in here.

The owner numbers its records as it emits them, but Redis has the last word, since requests of clients are appended
from anywhere. What came in between is put where it belongs, and the owner's own records move behind it. Nobody has
seen them yet.
"""

from collections.abc import Sequence

import msgspec

from headrace.events import REQUESTS, RunErrored
from headrace.log.follow import is_terminal
from headrace.log.live import LiveRun
from headrace.log.redis.stored import body_of, numbered
from headrace.state import RunState, apply
from headrace.wire.codec import decode_record, encode_record, frame_seq, frame_type

SEEN_BY_OTHERS = 1000
"""Seqs that are left out when a run is ended after Redis has lost records: followers elsewhere, and clients, may have
seen records that the owner was never told of."""

_REQUESTS = frozenset(cls.__struct_config__.tag for cls in REQUESTS)


def placed(frames: list[bytes], first: int) -> list[bytes]:
    """The same frames with seqs from `first` on."""
    if not frames or frame_seq(frames[0]) == first:
        return frames
    return [numbered(seq, body_of(frame)) for seq, frame in enumerate(frames, first)]


def catch_up(run: LiveRun, first: int, bodies: Sequence[bytes]) -> None:
    """These records stand in Redis from `first` on: accept those that the run does not have yet."""
    frames = [numbered(seq, body) for seq, body in enumerate(bodies, first) if seq > run.head]
    if not frames:
        return
    if is_terminal(frames[-1]):
        run.ending, run.token = True, None
        run.pending, run.requests = [], []
        run.last = run.head
    run.last += len(frames)
    run.pending = placed(run.pending, run.last + 1 - len(run.pending))
    moved = [msgspec.structs.replace(record, seq=record.seq + len(frames)) for record in run.requests]
    arrived = [decode_record(run.id, frame) for frame in frames if frame_type(frame) in _REQUESTS]
    run.requests = [*arrived, *moved]
    run.accept(frames)


class LostEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ends of which Redis has lost records: behind everything that anybody can have seen."""

    state: RunState
    frame: bytes
    seq: int

    @classmethod
    def again(cls, run: LiveRun) -> "LostEnd":
        """The end that an ended run has had."""
        return cls(state=run.fold_all(), frame=run.frames[-1], seq=run.head)


def lost_end(run: LiveRun, ts: int, error: RunErrored) -> LostEnd:
    """The end of such a run. Its durable records are all in memory; their fold takes the place of those in Redis."""
    seq = run.last + SEEN_BY_OTHERS
    frame = encode_record(seq, ts, error)
    return LostEnd(state=apply(run.fold_all(), decode_record(run.id, frame)), frame=frame, seq=seq)


def end_as_lost(run: LiveRun, end: LostEnd) -> None:
    """That end is durable now. Only the terminal record can be read; followers get the state before it."""
    run.ending, run.token = True, None
    run.pending, run.requests = [], []
    run.folded, run.frames, run.first = end.state, [], end.seq
    run.head, run.last = end.seq - 1, end.seq
    run.accept([end.frame])
