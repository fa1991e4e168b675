"""A request in the line, and what it is told there."""

import asyncio

from headrace.engine.line.line import Waiter
from headrace.engine.port import ModelRequest
from headrace.errors import EngineError


class Caller(Waiter):
    """`joined` is when it came, in the loop's time; `prefix` what its prompt has in common with others."""

    def __init__(self, request: ModelRequest, *, joined: float, prefix: str = "") -> None:
        super().__init__(priority=_priority(request), session=request.session, prefix=prefix)
        self.joined = joined
        self.told = 0  # the position that it knows of, 0 for none
        self.failure: EngineError | None = None
        self._position = 0
        self._news = asyncio.Event()

    def stands_at(self, position: int) -> None:
        """It is told at once, and then whenever half of those before it have gone: each time would be a record for
        everybody whenever anybody gets a place."""
        if not self._position or 2 * position <= self._position:
            self._position = position
            self._news.set()

    def notify(self) -> None:
        self._news.set()

    async def news(self) -> int | None:
        """Wait for a new position, 0 once it has a place after all, then None. Raises `failure`."""
        while self.holds is None:
            if self.failure is not None:
                raise self.failure
            if self._position != self.told:
                self.told = self._position
                return self.told
            self._news.clear()
            await self._news.wait()
        waited, self.told, self._position = self.told, 0, 0
        return 0 if waited else None


def now() -> float:
    """Loop time, in seconds."""
    return asyncio.get_running_loop().time()


def _priority(request: ModelRequest) -> int:
    """Somebody is reading a sentence that was cut: it goes before those that have not begun."""
    cut = request.continued is not None and request.priority <= 0
    return request.priority - 1 if cut else request.priority
