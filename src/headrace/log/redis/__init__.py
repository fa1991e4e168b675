"""The log that several processes share: Redis Streams. `redislog.py` puts it together; `keys.py` says what is where."""
