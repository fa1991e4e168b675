"""The line in front of one engine, which could queue requests itself, but in silence and first come first served.

Here everybody learns where they stand, a session with many requests takes its turn with the others, what may wait does
(`line.py`), and who leaves costs the engine nothing.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager

import msgspec

from headrace.engine.line.caller import Caller, now
from headrace.engine.line.line import MAX_WAITING, Line, patient_places, too_many
from headrace.engine.port import Chunk, Finish, ModelRequest, Queued
from headrace.errors import EngineError, EngineTimeout, EngineUnavailable

_HERE = "here"  # the only engine whose place a request may hold
_SLOW = 1.0  # seconds: what fails sooner holds up nobody


class EngineLine:
    """The engine gives `places` answers at once, None for any number of them; at most `max_waiting` requests wait.

    Who waits does not wait for each of those before it to find out that the engine is gone: once it has not answered
    one of them, nobody is left in line who has waited for as long as that one was tried, unless another answer has come
    meanwhile.
    """

    def __init__(self, places: int | None, *, max_waiting: int = MAX_WAITING) -> None:
        self._places = places
        self._max_waiting = max_waiting
        self._line: Line[Caller] = Line()
        self._active = self._patient = 0
        self._well = 0.0  # loop time: when an answer was last over without a failure

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._line)

    def set_places(self, places: int | None) -> None:
        """How many it is from now on. Those that are under way go on."""
        if places != self._places:
            self._places = places
            self._settle()

    @asynccontextmanager
    async def placed(
        self, request: ModelRequest, answer: AbstractAsyncContextManager[AsyncIterator[Chunk]]
    ) -> AsyncGenerator[AsyncIterator[Chunk], None]:
        """The chunks of `answer`, which is entered when this request has a place, and before them its positions.

        Raises EngineOverloaded when too many wait already, and what `answer` raises.
        """
        caller = self._joined(request)
        try:
            if caller.holds is not None:
                async with self._watched(answer) as chunks:
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
        waited_ms = (now() - caller.joined) * 1000
        async with self._watched(answer) as chunks:
            async for chunk in chunks:
                if type(chunk) is Finish:
                    chunk = msgspec.structs.replace(chunk, timing=chunk.timing.after(waited_ms))
                yield chunk

    @asynccontextmanager
    async def _watched(
        self, answer: AbstractAsyncContextManager[AsyncIterator[Chunk]]
    ) -> AsyncGenerator[AsyncIterator[Chunk], None]:
        began = now()
        try:
            async with answer as chunks:
                yield chunks
        except (EngineUnavailable, EngineTimeout) as error:
            if now() - began >= _SLOW and self._well < began:
                self._give_up(error, since=began)
            raise
        else:
            self._well = now()

    def _joined(self, request: ModelRequest) -> Caller:
        caller = Caller(request, joined=now())
        self._line.join(caller)
        self._settle()
        if caller.holds is None and self.waiting > self._max_waiting:
            self._leave(caller)
            raise too_many(self._max_waiting)
        return caller

    def _leave(self, caller: Caller) -> None:
        if caller.holds is not None:
            caller.holds = None
            self._active -= 1
            self._patient -= caller.patient
        elif caller in self._line:
            self._line.leave(caller)
        self._settle()

    def _give_up(self, error: EngineError, *, since: float) -> None:
        """What one of them has waited for in vain, those have too who have been here as long."""
        for caller in [caller for caller in self._line.order() if caller.joined <= since]:
            caller.failure = type(error)(error.message, hint=error.hint)
            caller.notify()
            self._line.leave(caller)

    def _settle(self) -> None:
        """Give out what is free, and tell those who wait where they stand."""
        while (caller := self._next()) is not None:
            caller.holds = _HERE
            self._active += 1
            self._patient += caller.patient
            self._line.went(caller)
            caller.notify()
        for position, caller in enumerate(self._line.order(), 1):
            caller.stands_at(position)

    def _next(self) -> Caller | None:
        """The first who may go now: some places are not for those who may wait."""
        if self._places is None:
            return next(self._line.order(), None)
        if self._active >= self._places:
            return None
        full = self._patient >= patient_places(self._places)
        return next((caller for caller in self._line.order() if not (caller.patient and full)), None)
