"""The promises of a log, and of the queue beside it.

A run is a sequence of records. The log alone hands out seqs: 1, 2, 3 … without gaps. A record never changes, and
what an append returned every later read gives back. Nobody sees a record before it is durable at the configured
level. There are two kinds of append: the owner's carries its fence, a client's request carries none and is refused
only once the run has ended.

Records travel as frames: the bytes of `wire.codec.encode_record`, made once for everybody.
"""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Literal, Protocol

import msgspec

from headrace.events import Event, Record, Request, RunStarted
from headrace.state import RunState, Status

Durability = Literal["memory", "journal", "fsync"]
"""`memory` survives nothing, `journal` survives kill -9, `fsync` survives a power cut."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """`seq` is the last one, 0 for none; `first` the oldest that can still be read (seq + 1 when none can)."""

    seq: int
    first: int
    closed: bool


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's hold on a run. `fence` is durable and grows by one with each claim. `expires_at` is loop time."""

    run_id: str
    fence: int
    expires_at: float | None = None


class NewRun(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a run beside its records. It never leaves the server.

    `key` is the caller's Idempotency-Key, unique within the tenant; `fingerprint` a hash of the request's body,
    by which the same key with another request is recognised.
    """

    run_id: str
    tenant: str = "default"
    key: str | None = None
    fingerprint: str = ""


class Created(msgspec.Struct, frozen=True, kw_only=True):
    """`new` is false when the key was known: `run_id` is then the earlier run's and `claim` is None."""

    run_id: str
    new: bool
    claim: Claim | None = None


Begun = Callable[[Claim], None]
"""Called with the creator's claim when the owner of a new run may read and write it. It must neither wait nor raise."""


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the list of runs. `title` is the beginning of the last user message."""

    run_id: str
    tenant: str
    agent: str
    thread_id: str
    status: Status
    created_ts: int
    ended_ts: int | None
    seq: int
    title: str


class Writer(Protocol):
    """The owner's hand on one run: every append carries the claim's fence."""

    @property
    def seq(self) -> int:
        """The last seq handed out, durable or not."""
        ...

    def emit(self, event: Event) -> None:
        """Append without waiting. It is durable, and only then seen by followers, at the end of this loop tick.

        Raises:
            StaleFence: another worker has claimed the run; nothing was written.
            RunEnded: the terminal record is already there.
            LogUnavailable: an earlier emit could not be stored (disk full); nothing after it was.
        """
        ...

    async def commit(self, *events: Event) -> None:
        """Append and return when these events, and all emitted before them, are durable. Raises as `emit`."""
        ...


class RunLog(Protocol):
    """Every method that takes a run_id raises UnknownRun for one that was never created or is long forgotten."""

    async def create(
        self, run: NewRun, started: RunStarted, *, claim: bool = False, begun: Begun | None = None
    ) -> Created:
        """Begin a run: its first record is `started`. With `claim` or `begun` the caller also becomes its owner.

        `begun` is called as soon as the owner may read and write the run, which may be before anything of it is
        durable. So until its first `commit` has returned, the owner must do nothing that could not be undone. If the
        run cannot be stored after all, its `Owner` loses it, and nothing has ever been there.

        Raises:
            IdempotencyConflict: the key is known with another fingerprint.
            LogUnavailable: it could not be stored; nothing was begun.
        """
        ...

    async def append(
        self,
        run_id: str,
        events: Sequence[Event],
        *,
        expected_seq: int | None = None,
        fence: int | None = None,
        key: str | None = None,
    ) -> Sequence[Record]:
        """Append all of `events` or none, and return when they are durable.

        Without a fence only the requests of clients are taken. With a `key` that this run has seen, nothing is
        written and the records of the first time are returned.

        Raises:
            StaleFence: `fence` is not the run's current one.
            SeqConflict: `expected_seq` is not the head.
            RunEnded: the terminal record is there.
            LogUnavailable: it could not be stored.
        """
        ...

    def writer(self, claim: Claim) -> Writer:
        """The hot path of the owner's appends."""
        ...

    async def claim(self, run_id: str) -> Claim:
        """Become the owner: the fence grows by one, durably, and the former owner can write no more.

        Raises:
            RunEnded: there is nothing left to own.
        """
        ...

    async def adopt(self, limit: int) -> Sequence[Claim]:
        """Claim up to `limit` unfinished runs that no living worker holds, oldest first.

        Those are runs that nobody has claimed yet, that were released, or whose worker is dead: its process has gone,
        or has not kept its lease. Two workers that adopt at the same time never get the same run.
        """
        ...

    async def release(self, claim: Claim) -> None:
        """Give a run up unfinished, so that others may adopt it at once. A claim that is none any more is ignored.

        Closing the log releases what this process still holds.
        """
        ...

    async def read(self, run_id: str, *, after: int = 0, limit: int = 1000) -> Sequence[Record]:
        """The records after a seq, oldest first, at most `limit`. Starts at `Head.first` if `after` is older."""
        ...

    async def read_frames(self, run_id: str, *, after: int = 0, limit: int = 1000) -> Sequence[bytes]:
        """The same as frames."""
        ...

    async def head(self, run_id: str) -> Head: ...

    async def catch_up(self, run_id: str) -> None:
        """Learn what other processes have done to a run, so that what is read next is no older than this call.

        What a process knows of a run of its own may be older for a moment: another one has shown a record whose
        answer is still on its way here, or this one stood still and another went on. So nothing that a client has
        seen is denied before this was called. Where one process owns the store there is nothing to learn.

        Raises:
            LogUnavailable: the store could not be asked.
        """
        ...

    async def state(self, run_id: str) -> RunState:
        """The run folded up to its head; its `seq` says which. Outlives the records."""
        ...

    async def owner(self, run_id: str) -> str | None:
        """The tenant a run belongs to, or None for no such run. Cheap: every request asks it."""
        ...

    async def find(self, run_id: str) -> RunInfo | None:
        """The row of a run in the list of runs, or None."""
        ...

    async def runs(
        self, tenant: str, *, thread_id: str | None = None, before: str | None = None, limit: int = 50
    ) -> Sequence[RunInfo]:
        """Newest first; `before` is a run_id to continue after."""
        ...

    @property
    def writable(self) -> bool:
        """False while the store refuses writes (disk full, I/O errors). `/readyz` says so."""
        ...


class Owner(Protocol):
    """Who works on a run in this process. What it is told must neither wait nor raise."""

    def notify(self, record: Record) -> None:
        """A client's request (`events.Request`) has been appended and is durable."""
        ...

    def lose(self) -> None:
        """This process no longer holds the run: another worker has claimed it, the lease could not be kept, or it could
        not be stored at all. A hint: what protects a run is its fence."""
        ...


class Wakeups(Protocol):
    """Hints that a run has grown. Losing one costs a poll, never a record."""

    def subscribe(self, run_id: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` (which must not wait or raise) whenever records of this run have become durable.

        Returns the function that ends the subscription. Order: subscribe, then read, then wait.
        """
        ...

    def subscribe_owner(self, run_id: str, owner: Owner) -> None:
        """Tell `owner` of its run from now on, instead of whoever was told before."""
        ...

    def unsubscribe_owner(self, run_id: str, owner: Owner) -> None:
        """Tell it no more. Nothing happens where another one is told by now."""
        ...

    def subscribe_work(self, notify: Callable[[], None]) -> Callable[[], None]:
        """Call `notify` when there may be runs to adopt: some were released, or a lease has run out."""
        ...

    def recent(self, run_id: str, after: int) -> Sequence[bytes] | None:
        """Some durable frames after a seq if that takes no waiting (none at the head), else None: then read."""
        ...


class Log(RunLog, Wakeups, Protocol):
    """What the server is given: an async context manager; who opens it closes it."""

    @property
    def adopt_every_s(self) -> float | None:
        """How often to look for runs to adopt without having been told; None: never, this process owns the store."""
        ...

    async def __aenter__(self) -> "Log": ...

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None: ...


__all__ = [
    "Begun",
    "Claim",
    "Created",
    "Durability",
    "Head",
    "Log",
    "NewRun",
    "Owner",
    "Request",
    "RunInfo",
    "RunLog",
    "Wakeups",
    "Writer",
]
