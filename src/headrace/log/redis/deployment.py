"""What all parts of a Redis log share: where it is, what its keys are called, and who asks."""

from collections.abc import Callable

import msgspec

from headrace.clock import wall_ms
from headrace.log.redis.keys import Keys
from headrace.log.redis.servers import Servers
from headrace.log.redis.wire import Answer
from headrace.log.retention import Retention


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """`worker` is this process; others send it word by that name. `writes` and `reads` are apart, so that a long read
    holds up no record. `within_s`: how long an answer may take. `clock`: Unix milliseconds."""

    writes: Servers
    reads: Servers
    keys: Keys
    worker: str
    retention: Retention
    within_s: float
    clock: Callable[[], int] = wall_ms

    async def written(self, answer: Answer) -> Answer:
        """Raises LogUnavailable if the answer takes too long."""
        return await self.writes.answered(answer, within=self.within_s)

    async def read(self, answer: Answer) -> Answer:
        """The same for `reads`."""
        return await self.reads.answered(answer, within=self.within_s)
