"""Fixtures that tests of several rooms use."""

from redis_server import own_redis, redis_prefix, redis_url

__all__ = ["own_redis", "redis_prefix", "redis_url"]
