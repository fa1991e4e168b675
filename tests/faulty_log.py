"""A log in memory whose records of some runs cannot be read for a while."""

from collections.abc import Sequence

from headrace.errors import LogUnavailable
from headrace.log.memory import MemoryLog


class FaultyLog(MemoryLog):
    """`faults`: what reading the records of a run raises. `refused` counts how often it has."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: dict[str, Exception] = {}
        self.refused = 0

    def break_run(self, run_id: str, error: Exception | None = None) -> None:
        self.faults[run_id] = error or LogUnavailable("The disk does not answer.")

    def recent(self, run_id: str, after: int) -> Sequence[bytes] | None:
        return None if run_id in self.faults else super().recent(run_id, after)

    async def read_frames(self, run_id: str, *, after: int = 0, limit: int = 1000) -> Sequence[bytes]:
        if run_id in self.faults:
            self.refused += 1
            raise self.faults[run_id]
        return await super().read_frames(run_id, after=after, limit=limit)
