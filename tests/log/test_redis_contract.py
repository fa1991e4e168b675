import pytest

from headrace.log.ports import Log
from headrace.log.redis.redislog import RedisLog
from headrace.log.retention import Retention
from headrace.testing.log_contract import LogContract


class TestRedis(LogContract):
    @pytest.fixture(autouse=True)
    def _place(self, redis_url: str, redis_prefix: str) -> None:
        self.url, self.prefix = redis_url, redis_prefix

    def open(self, *, max_records: int = 100_000) -> Log:
        return RedisLog(self.url, prefix=self.prefix, retention=Retention(max_records=max_records))


class TestRedisSealedAtOnce(TestRedis):
    """Every ended run leaves memory within a millisecond, under the feet of whoever uses it."""

    def open(self, *, max_records: int = 100_000) -> Log:
        retention = Retention(max_records=max_records)
        return RedisLog(self.url, prefix=self.prefix, retention=retention, tidy_every_s=0.001, keep_ended_s=0)
