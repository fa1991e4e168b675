"""The log that the configuration asks for: in memory, on disk, or in the Redis that several instances share."""

import asyncio
import logging
from pathlib import Path

from headrace.config import Config, LogConfig
from headrace.errors import ConfigError
from headrace.log.journal import JournalLog
from headrace.log.memory import MemoryLog
from headrace.log.ports import Log
from headrace.log.retention import DAY_S, Retention

logger = logging.getLogger("headrace.server")


def open_log(config: Config) -> Log:
    """The log that the configuration asks for, not entered yet.

    Raises:
        ConfigError: `log.url` is none, or the driver for it is missing.
    """
    settings = config.log
    retention = Retention(
        max_records=settings.retain_records,
        frames_age_s=settings.retain_hours * 3600,
        state_age_s=settings.retain_days * DAY_S,
    )
    if settings.url is not None:
        return _redis_log(settings.url, settings)
    if settings.durability == "memory":
        return MemoryLog(retention=retention)
    return JournalLog(Path(settings.path).expanduser(), durability=settings.durability, retention=retention)


def _redis_log(url: str, settings: LogConfig) -> Log:
    try:
        from headrace.log.redis.connection import check_url
        from headrace.log.redis.redislog import RedisLog
    except ModuleNotFoundError as exc:
        if exc.name != "redis":
            raise
        raise ConfigError("log.url needs the driver for Redis.", hint="pip install 'headrace[redis]'") from exc
    check_url(url)
    retention = Retention(
        max_records=settings.retain_records,
        frames_age_s=settings.replay_minutes * 60,
        state_age_s=settings.retain_days * DAY_S,
    )
    return RedisLog(url, prefix=settings.prefix, lease_s=settings.lease, retention=retention)


async def warn_about_redis(url: str) -> None:
    """Say at start what an operator should know of the server that keeps the runs."""
    from headrace.log.redis.server_check import look_at

    for remark in await asyncio.to_thread(look_at, url):
        logger.log(logging.ERROR if remark.level == "bad" else logging.WARNING, "Redis: %s", remark.text)
