"""Which of this process's runs may work now. Pure: the decision moves the state, the supervisor does the rest.

`limit` runs work at the same time, the others queue in order. A run that waits for a person keeps nobody else waiting:
it may do so for days.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import suppress

from headrace.supervisor.work import Work


class Places:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.active: set[Work] = set()
        self.queue: deque[Work] = deque()

    @property
    def room(self) -> int:
        """How many more may work."""
        free = self._limit - len(self.active)
        return free if free > 0 else max(0, free + sum(work.waiting for work in self.active))

    def start(self, work: Work) -> bool:
        """Give a run a place, or else a position in the queue."""
        if self.room:
            self.active.add(work)
            return True
        self.queue.append(work)
        return False

    def next(self) -> Work | None:
        """The first of the queue, if there is a place for it now."""
        if not (self.queue and self.room):
            return None
        work = self.queue.popleft()
        self.active.add(work)
        return work

    def let_end(self, work: Work) -> None:
        """Give a run that only has to end a place beyond the limit."""
        self.leave(work)
        self.active.add(work)

    def leave(self, work: Work) -> None:
        if work in self.active:
            self.active.remove(work)
        else:
            with suppress(ValueError):
                self.queue.remove(work)

    def positions(self) -> Iterator[tuple[Work, int]]:
        """The waiting runs that should be told where they stand: each of the first ten, every tenth of the others."""
        for position, work in enumerate(self.queue, 1):
            if position != work.position and (position <= 10 or position % 10 == 0 or not work.position):
                work.position = position
                yield work, position
