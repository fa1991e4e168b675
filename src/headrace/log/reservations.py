"""Names that somebody is creating a run for right now: the second one with the same name waits for the first."""

import asyncio
from collections.abc import Sequence

from headrace.log.rules import Name


class Reservations:
    def __init__(self) -> None:
        self._taken: dict[Name, asyncio.Event | None] = {}  # None while nobody waits for it, which is nearly always

    async def take(self, names: Sequence[Name]) -> None:
        """Wait until all these names are free and take them. Cancelled while waiting, it has taken none."""
        while (busy := self._busy(names)) is not None:
            await busy.wait()
        for name in names:
            self._taken[name] = None

    def _busy(self, names: Sequence[Name]) -> asyncio.Event | None:
        """Set once the first of these names that is taken is free again."""
        for name in names:
            if name in self._taken:
                free_again = self._taken[name] = self._taken[name] or asyncio.Event()
                return free_again
        return None

    def release(self, names: Sequence[Name]) -> None:
        for name in names:
            if free_again := self._taken.pop(name, None):
                free_again.set()
