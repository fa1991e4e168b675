"""Wall time, for stamps only. Durations are measured with `time.monotonic` or the loop's clock."""

import time


def wall_ms() -> int:
    """Unix time in milliseconds."""
    return time.time_ns() // 1_000_000
