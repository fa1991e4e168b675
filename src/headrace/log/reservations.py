"""Names that somebody is creating a run for right now: the second one with the same name waits for the first."""

import asyncio
from collections.abc import Sequence

from headrace.log.rules import Name


class Reservations:
    def __init__(self) -> None:
        self._taken: dict[Name, asyncio.Event] = {}

    async def take(self, names: Sequence[Name]) -> None:
        """Wait until all these names are free and take them. Cancelled while waiting, it has taken none."""
        while busy := next((self._taken[name] for name in names if name in self._taken), None):
            await busy.wait()
        free_again = asyncio.Event()
        for name in names:
            self._taken[name] = free_again

    def release(self, names: Sequence[Name]) -> None:
        for name in names:
            if free_again := self._taken.pop(name, None):
                free_again.set()
