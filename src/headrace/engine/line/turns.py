"""The line in front of one engine, which could queue requests itself, but in silence and first come first served.

Here everybody learns where they stand, a session with many requests takes its turn with the others, what may wait does
(`line.py`), and who leaves costs the engine nothing.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager

import msgspec

from headrace.engine.line.caller import Caller
from headrace.engine.line.line import MAX_WAITING, Line, patient_places, too_many
from headrace.engine.port import Chunk, Finish, ModelRequest, Queued

_HERE = "here"  # the only place where a request may be answered


class Turns:
    """The engine gives `slots` answers at once, which may be changed; at most `max_waiting` requests wait for one."""

    def __init__(self, slots: int, *, max_waiting: int = MAX_WAITING) -> None:
        self.slots = slots
        self._max_waiting = max_waiting
        self._line: Line[Caller] = Line()
        self._active = self._patient = 0

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._line)

    @asynccontextmanager
    async def in_turn(
        self, request: ModelRequest, answer: AbstractAsyncContextManager[AsyncIterator[Chunk]]
    ) -> AsyncGenerator[AsyncIterator[Chunk], None]:
        """The chunks of `answer`, which is entered when it is this request's turn, and before them its positions.

        Raises EngineOverloaded when too many wait already, and what `answer` raises.
        """
        caller = self._joined(request)
        try:
            if caller.holds is not None:
                async with answer as chunks:
                    yield chunks
            else:
                async with aclosing(self._waited(caller, answer)) as chunks:
                    yield chunks
        finally:
            self._leave(caller)

    async def _waited(
        self, caller: Caller, answer: AbstractAsyncContextManager[AsyncIterator[Chunk]]
    ) -> AsyncGenerator[Chunk, None]:
        while (position := await caller.news()) is not None:
            yield Queued(position)
        waited_ms = (_now() - caller.joined) * 1000
        async with answer as chunks:
            async for chunk in chunks:
                if type(chunk) is Finish:
                    chunk = msgspec.structs.replace(chunk, timing=chunk.timing.after(waited_ms))
                yield chunk

    def _joined(self, request: ModelRequest) -> Caller:
        caller = Caller(request, joined=_now())
        self._line.join(caller)
        self._settle()
        if caller.holds is None and self.waiting > self._max_waiting:
            self._leave(caller)
            raise too_many(self._max_waiting)
        return caller

    def _leave(self, caller: Caller) -> None:
        if caller.holds is None:
            self._line.leave(caller)
        else:
            caller.holds = None
            self._active -= 1
            self._patient -= caller.patient
        self._settle()

    def _settle(self) -> None:
        """Give out what is free, and tell those who wait where they stand."""
        while self._active < self.slots and (caller := self._next()) is not None:
            caller.holds = _HERE
            self._active += 1
            self._patient += caller.patient
            self._line.went(caller)
            caller.notify()
        for position, caller in enumerate(self._line.order(), 1):
            caller.stands_at(position)

    def _next(self) -> Caller | None:
        """The first who may go now: some places are not for those who may wait."""
        full = self._patient >= patient_places(self.slots)
        return next((caller for caller in self._line.order() if not (caller.patient and full)), None)


def _now() -> float:
    return asyncio.get_running_loop().time()
