"""Connections to the server that a URL names, or to the cluster that this server is part of.

Nothing is tried again in here: who calls knows whether a second try may do harm, and how long there is to wait.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
import redis.asyncio as aioredis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from headrace.errors import ConfigError, LogUnavailable

BlockingRedis = redis.Redis | redis.RedisCluster
AsyncRedis = aioredis.Redis | aioredis.RedisCluster


async def connect(url: str, *, timeout_s: float) -> AsyncRedis:
    """A client for the loop; it gives and takes text.

    Raises:
        ConfigError: the URL is none.
        redis.RedisError: the server does not answer within the timeout.
    """
    check_url(url)
    options = _options(timeout_s) | {"retry": AsyncRetry(NoBackoff(), 0)}
    single = aioredis.Redis.from_url(url, **options)
    try:
        if not (await single.info("cluster"))["cluster_enabled"]:
            return single
    except BaseException:
        await single.aclose()
        raise
    await single.aclose()
    return await aioredis.RedisCluster.from_url(url, **options).initialize()


def connect_blocking(url: str, *, timeout_s: float) -> BlockingRedis:
    """The same for a thread."""
    check_url(url)
    options = _options(timeout_s) | {"retry": Retry(NoBackoff(), 0)}
    single = redis.Redis.from_url(url, **options)
    try:
        if not single.info("cluster")["cluster_enabled"]:
            return single
    except BaseException:
        single.close()
        raise
    single.close()
    return redis.RedisCluster.from_url(url, **options)


def check_url(url: str) -> None:
    """Raises ConfigError for what is no Redis URL. It is not repeated: what went wrong may be the password."""
    try:
        redis.connection.parse_url(url)  # type: ignore[no-untyped-call]
    except ValueError as exc:
        hint = "A password's : / @ and % are written %3A %2F %40 and %25."
        raise ConfigError("log.url is no address of a Redis server.", hint=hint) from exc


def _options(timeout_s: float) -> dict[str, Any]:
    return {"decode_responses": True, "socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}


@contextmanager
def unavailable_if_it_fails() -> Iterator[None]:
    """What the driver raises becomes ours."""
    try:
        yield
    except (redis.RedisError, OSError) as exc:
        raise LogUnavailable(
            f"Redis cannot be used: {exc}", hint="Is it there, and neither full nor read-only?"
        ) from exc
