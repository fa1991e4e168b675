"""One client's view of one run: what each frame does to the cursor and the state. No I/O, no clock.

Rules: a record that was seen is dropped; a record that does not follow the cursor breaks the link, and the next one
starts at the last good seq; a snapshot replaces the state; the terminal record is the end, and a connection that
closes without it was cut. The same gap twice from the same cursor is the server's fault and ends the session.
"""

from collections.abc import Iterator

from headrace.client.frames import Arrived, Frame, Skipped, Snapshot
from headrace.errors import ProtocolBroken
from headrace.events import TERMINALS, Record, TextDelta, ThinkingDelta
from headrace.state import RunState, fold, initial

Item = Record | Snapshot

HEARTBEAT_S = 15.0
SILENT_HEARTBEATS = 2.5
"""How many heartbeats may stay away before the link is taken for dead (half-open)."""

_FOLD_AFTER = 512
"""Records are folded in batches: `fold` joins adjacent deltas, so long answers stay linear."""


class Gap(ProtocolBroken):
    """A record is missing before this one. The link is given up and the next one continues after the cursor."""


class Session:
    """`cursor` is the seq of the last frame taken. `whole` says whether `state` holds the run from its beginning.

    With `filtered` the stream shows some types only, so seqs may jump.
    """

    def __init__(self, run_id: str, *, after: int = 0, filtered: bool = False) -> None:
        self.run_id = run_id
        self.cursor = after
        self.ended = False
        self.whole = after == 0 and not filtered
        self._filtered = filtered
        self._state = initial(run_id)
        self._unfolded: list[Record] = []
        self._gap_at: int | None = None

    @property
    def state(self) -> RunState:
        """The run as far as it was followed here."""
        if self._unfolded:
            self._state = fold(self._unfolded, self._state)
            self._unfolded = []
        return self._state

    def take(self, frame: Frame) -> Item | None:
        """What a frame means to the reader of this run, None for nothing new.

        Raises:
            Gap: reconnect after `cursor`.
            ProtocolBroken: the server left out the same records again.
        """
        match frame:
            case Arrived():
                return self._record(frame)
            case Snapshot():
                return self._snapshot(frame)
            case Skipped():
                self.cursor = max(self.cursor, frame.seq)
                return None

    def finish(self) -> None:
        """The server says that nothing follows (204)."""
        self.ended = True

    def _record(self, arrived: Arrived) -> Item | None:
        record = arrived.record
        terminal = isinstance(record.event, TERMINALS)
        if record.seq <= self.cursor and not terminal:
            return None
        if record.seq > self.cursor:
            self._require_next(record.seq, arrived.n)
            self._fold(arrived)
        self.ended = terminal
        return record

    def _require_next(self, seq: int, n: int) -> None:
        missing = seq - n - self.cursor
        if missing == 0 or (missing > 0 and self._filtered):
            self.cursor = seq
            return
        message = f"Run {self.run_id}: after record {self.cursor} came {seq} covering {n}."
        if self._gap_at == self.cursor:
            raise ProtocolBroken(message, hint="The server left this out twice; its log may be damaged.")
        self._gap_at = self.cursor
        raise Gap(message)

    def _fold(self, arrived: Arrived) -> None:
        self._unfolded.extend(_unmerged(arrived))
        if len(self._unfolded) >= _FOLD_AFTER:
            _ = self.state

    def _snapshot(self, snapshot: Snapshot) -> Item | None:
        if snapshot.as_of_seq <= self.cursor and self.cursor:
            return None
        self._unfolded = []
        self._state = snapshot.state
        self.cursor = snapshot.as_of_seq
        self.whole = not self._filtered
        return snapshot


def _unmerged(arrived: Arrived) -> Iterator[Record]:
    """A merged delta as the records it stands for, so that the folded state is the server's, delta counts included."""
    record = arrived.record
    event = record.event
    if arrived.n > 1 and isinstance(event, TextDelta | ThinkingDelta):
        for seq in range(record.seq - arrived.n + 1, record.seq):
            yield Record(run_id=record.run_id, seq=seq, ts=record.ts, event=type(event)(text=""))
    yield record


class Watchdog:
    """Notices a half-open link by its bytes: heartbeats are bytes too, so a live link is never silent for long."""

    def __init__(self, now: float, heartbeat: float = HEARTBEAT_S) -> None:
        self._heartbeat = heartbeat
        self.deadline = now + heartbeat * SILENT_HEARTBEATS

    def heard(self, now: float) -> None:
        self.deadline = now + self._heartbeat * SILENT_HEARTBEATS
