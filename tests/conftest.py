"""Fixtures that tests of several rooms use."""

import signal

from redis_server import own_redis, redis_prefix, redis_url

__all__ = ["own_redis", "redis_prefix", "redis_url"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts its background jobs so, and every process of the tests would inherit it, deaf to Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
