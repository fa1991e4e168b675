"""The log that survives nothing: for tests, for a try, and for `durability=memory`."""

from collections.abc import Callable

from headrace.clock import wall_ms
from headrace.log.batch import Batch
from headrace.log.livelog import LiveLog
from headrace.log.retention import Retention


class MemoryLog(LiveLog):
    """Runs live and end here. Ended ones lose their records, then their state, by age or when they take too much room.

    `tidy_every_s`: seconds between two rounds of forgetting. `clock`: Unix milliseconds.
    """

    def __init__(
        self,
        *,
        retention: Retention | None = None,
        tidy_every_s: float = 5.0,
        clock: Callable[[], int] = wall_ms,
    ) -> None:
        super().__init__(retention=retention or Retention(), tidy_every_s=tidy_every_s, clock=clock)

    def _write(self, batch: Batch) -> None:
        self._commits.land(batch)

    async def tidy(self) -> None:
        now = self._clock()
        room = self._retention.ended_bytes - sum(run.size for run in self._ended.values())
        for run in list(self._ended.values()):
            age_s = (now - run.ended_ts) / 1000
            if age_s >= self._retention.state_age_s:
                self._forget(run)
            elif len(run.frames) > 1 and (age_s >= self._retention.frames_age_s or room < 0):
                room += run.size
                run.trim(len(run.frames) - 1)
