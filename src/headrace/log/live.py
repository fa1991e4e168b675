"""A run in memory: its frames and who waits for more of them.

Two heads: `last` is the seq handed out, `head` the last durable one. What lies between is `pending` or under way
to the disk, and nobody sees it. `token` is the right to write: a writer holds the token it was born with, and a new
claim, a failed write or the terminal record change it, so that `emit` compares one reference. No I/O and no clock here.
"""

import itertools
import logging
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from headrace.events import REQUESTS, TERMINALS, Event, Record
from headrace.log.ports import Head, NewRun, Owner, RunInfo
from headrace.state import RunState, fold, initial
from headrace.wire.codec import decode_record

log = logging.getLogger(__name__)

SPECIAL = frozenset((*TERMINALS, *REQUESTS))
TITLE_CHARS = 80
FOLD_STEP = 1000
"""Records folded in one go, about 3 ms."""

_tickets = itertools.count()

Notify = TypeVar("Notify", bound=Callable[..., Any])


class LiveRun:
    """`frames[0]` has seq `first`; there is nothing per record but its frame. `size` is their bytes, once ended;
    `notable` is the head at which housekeeping wants to hear of it. `held`: a worker of this process has it."""

    __slots__ = (
        "ended",
        "ending",
        "fence",
        "first",
        "folded",
        "frames",
        "fresh_keys",
        "head",
        "held",
        "id",
        "keys",
        "last",
        "new",
        "notable",
        "owner",
        "pending",
        "requests",
        "segment",
        "size",
        "subscribers",
        "token",
    )

    def __init__(self, new: NewRun, *, fence: int = 0, held: bool = False) -> None:
        self.new = new
        self.id = new.run_id
        self.fence = fence
        self.held = held
        self.token: object = object()
        self.last = 0
        self.head = 0
        self.first = 1
        self.frames: list[bytes] = []
        self.pending: list[bytes] = []
        self.keys: dict[str, tuple[int, int]] = {}
        self.fresh_keys: dict[str, tuple[int, int]] = {}  # not yet handed to the store
        self.requests: list[Record] = []
        self.subscribers: dict[int, Callable[[], None]] = {}
        self.owner: Owner | None = None
        self.folded: RunState | None = None
        self.ending = False
        self.ended = False
        self.size = 0
        self.segment = 0
        self.notable = sys.maxsize

    def noted(self, seq: int, ts: int, event: Event) -> None:
        """Remember what is special about an event that just got its seq."""
        if isinstance(event, TERMINALS):
            self.ending = True
            self.token = None
        else:
            self.requests.append(Record(run_id=self.id, seq=seq, ts=ts, event=event))  # type: ignore[arg-type]

    def accept(self, frames: list[bytes]) -> bool:
        """These frames are durable: everybody may see them. True if the run has ended or grown past `notable`."""
        self.frames += frames
        self.head += len(frames)
        if self.ending and self.head == self.last:
            self.ended = True
        for wake in tuple(self.subscribers.values()):
            try:
                wake()
            except Exception:
                log.exception("a follower of run %s failed to wake", self.id)
        if self.requests:
            self._notify_requests()
        return self.ended or self.head >= self.notable

    def _notify_requests(self) -> None:
        while self.requests and self.requests[0].seq <= self.head:
            record = self.requests.pop(0)
            if self.owner is not None:
                try:
                    self.owner.notify(record)
                except Exception:
                    log.exception("run %s could not be told of a request", self.id)

    def roll_back(self) -> None:
        """What was not durable never happened, and its writer is broken."""
        self.last = self.head
        self.pending = []
        self.requests = []
        self.fresh_keys = {}
        self.keys = {key: span for key, span in self.keys.items() if span[1] <= self.head}
        self.ending = self.ended
        if not self.ended:
            self.token = object()

    def slice(self, after: int, limit: int) -> list[bytes]:
        start = max(after + 1 - self.first, 0)
        return self.frames[start : start + max(limit, 0)]

    @property
    def ended_ts(self) -> int:
        """When the last record was stamped: for an ended run its end."""
        return decode_record(self.id, self.frames[-1]).ts

    def facts(self) -> Head:
        return Head(seq=self.head, first=self.first, closed=self.ended)

    def fold_some(self) -> RunState:
        """The state, advanced by at most FOLD_STEP records."""
        state = self.folded or initial(self.id)
        if state.seq >= self.head:
            return state
        frames = self.slice(state.seq, FOLD_STEP)
        self.folded = fold((decode_record(self.id, frame) for frame in frames), state)
        return self.folded

    def fold_all(self) -> RunState:
        while (state := self.fold_some()).seq < self.head:
            pass
        return state

    def trim(self, count: int) -> None:
        """Drop `count` frames from the front; the folded state covers them."""
        self.fold_all()
        del self.frames[:count]
        self.first += count
        self.size = sum(map(len, self.frames)) if self.ended else 0

    def subscribe(self, wake: Callable[[], None]) -> Callable[[], None]:
        return subscribed(self.subscribers, wake)

    def lose(self) -> None:
        """Tell whoever held it that it does no more."""
        owner, self.owner = self.owner, None
        if owner is not None:
            tell([owner.lose], f"run {self.id} is lost")


def subscribed(subscribers: dict[int, Notify], notify: Notify) -> Callable[[], None]:
    """Add a subscriber; returns what takes it away again."""
    ticket = next(_tickets)
    subscribers[ticket] = notify
    return partial(_drop, subscribers, ticket)


def tell(subscribers: Iterable[Callable[[], None]], what: str) -> None:
    """Call each of them; one that fails disturbs nobody."""
    for notify in tuple(subscribers):
        try:
            notify()
        except Exception:
            log.exception("a subscriber failed to hear that %s", what)


def _drop(subscribers: dict[int, Notify], ticket: int) -> None:
    subscribers.pop(ticket, None)


def info(new: NewRun, state: RunState) -> RunInfo:
    """The row of the list of runs that a state amounts to."""
    asked = next((message.content for message in reversed(state.input) if message.role == "user"), "")
    return RunInfo(
        run_id=new.run_id,
        tenant=new.tenant,
        agent=state.agent,
        thread_id=state.thread_id,
        status=state.status,
        created_ts=state.created_ts,
        ended_ts=state.ended_ts,
        seq=state.seq,
        title=" ".join(asked.split())[:TITLE_CHARS],
    )
