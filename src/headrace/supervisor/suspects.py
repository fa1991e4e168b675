"""Runs that may be what takes workers down are worked on one at a time, until they get further.

Whatever runs beside a run that kills its process is lost with it, and after some crashes looks as bad. Alone, the one
that does it shows, and the others are spared.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from headrace.agent.port import Emit
from headrace.events import Event
from headrace.state import gets_further
from headrace.supervisor.work import Work


class Suspects:
    """`changed` is called when one begins to wait for its turn: it then keeps no place from others."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.changed = changed
        self._free = asyncio.Lock()

    @asynccontextmanager
    async def alone(self, work: Work, out: Emit) -> "AsyncIterator[Watched]":
        """Wait for one's turn. It lasts until the run gets further, waits for a person, or is left."""
        work.in_line = self._free.locked()
        if work.in_line:
            self.changed()
        try:
            await self._free.acquire()
        finally:
            work.in_line = False
        watched = Watched(out, self._free)
        try:
            yield watched
        finally:
            watched.let_go()


class Watched:
    """A suspect's way into the log."""

    def __init__(self, out: Emit, held: asyncio.Lock) -> None:
        self._out = out
        self._held: asyncio.Lock | None = held

    @property
    def seq(self) -> int:
        return self._out.seq

    def emit(self, event: Event) -> None:
        self._out.emit(event)
        if gets_further(event):
            self.let_go()

    async def commit(self, *events: Event) -> None:
        await self._out.commit(*events)
        if any(gets_further(event) for event in events):
            self.let_go()

    def let_go(self) -> None:
        """The next one may come."""
        held, self._held = self._held, None
        if held is not None:
            held.release()
