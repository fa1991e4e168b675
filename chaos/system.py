"""What is put to the test: anything that can start runs and be followed. Standard library only.

A system brings its processes, and the client that its users would have. It never works around its own faults: what its
client shows is what counts. A rival is a module `chaos.rivals.<name>` with a function `make() -> System | None` (None,
with the reason on stderr, where it cannot be installed).
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from chaos.plan import RunPlan
from chaos.process import Process


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A record as it reached a reader.

    `seq` is the system's own number of it, whatever it counts from; it goes up. `first` is the first one that
    it covers (0: only itself; else the system has merged some). `kind` is the system's name for it, save four that
    the judge must know: `turn.started`, `text.delta` (`text` is said), `text.retracted` (what `turn` has said is void)
    and `text.replaced` (`text` is all that has been said so far).
    `data` is the record's bytes as received, `worker` the pid of whoever then worked on the run, where the record
    tells. `at` is Unix time in seconds: when it arrived, or, in a `Final`, when it was made (0 where the system
    does not tell).
    """

    seq: int
    kind: str
    at: float
    first: int = 0
    text: str = ""
    turn: int = 0
    terminal: bool = False
    worker: int = 0
    data: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Final:
    """A run as the system itself reports it afterwards, to somebody who never followed it.

    `status` is `completed`, or what else became of it (and `reason` why); "" while it has no end. `text` is everything
    it said, `output` its last answer alone where the system tells. `records` is the run read from its beginning, None
    if the system has no way to read an ended run again; they are `dense` if nothing but a loss leaves a hole in their
    numbers. `settled` says when each call got its result: call_id → Unix time in seconds.
    """

    status: str
    text: str
    terminals: int
    reason: str = ""
    output: str | None = None
    records: Sequence[Seen] | None = None
    dense: bool = True
    settled: Mapping[str, float] = field(default_factory=dict)


class System(Protocol):
    """`url` is where its clients connect. The harness replaces it after `start` by its own address, which leads to the
    first one and cuts connections."""

    name: str
    url: str
    kinds: Sequence[str]
    """The clients it has, by name: for `follow`."""

    @property
    def processes(self) -> Sequence[Process]:
        """What may be killed. They are started, and killed processes are started again by the harness."""
        ...

    async def start(self, instances: int, folder: Path) -> None:
        """Start everything. `folder` is empty and the system's own; tools write to the file `folder/ledger`."""
        ...

    async def stop(self) -> None: ...

    async def begin(self, client: int, plan: RunPlan) -> str:
        """Start a run with `plan.question`, asking again as that system's client would; its id.

        Raises whatever the client raises when it gives up.
        """
        ...

    def follow(self, run_id: str, kind: str) -> AsyncIterator[Seen]:
        """The run from its beginning to its end, through broken connections, as that system's client comes back.

        Raises whatever the client raises when it gives up.
        """
        ...

    async def final(self, run_id: str) -> Final: ...
