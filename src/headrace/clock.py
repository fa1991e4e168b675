"""Wall time, for stamps only. Durations are measured with `time.monotonic` or the loop's clock."""

import time

_EARLIEST_MS = 1_000_000_000_000


def wall_ms() -> int:
    """Unix time in milliseconds. Never before September 2001, also on a machine whose clock was never set: a stamp
    has 13 digits, and `wire.chunking` cuts frames by that."""
    return max(time.time_ns() // 1_000_000, _EARLIEST_MS)
