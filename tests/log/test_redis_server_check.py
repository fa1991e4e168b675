from pathlib import Path

import pytest

from headrace.errors import LogUnavailable
from headrace.log.redis.server_check import Values, look_at, remarks
from redis_server import DURABLE, VOLATILE, RedisServer, cluster_of_three, require_server

GOOD_INFO = {
    "redis_version": "7.0.15",
    "role": "master",
    "aof_enabled": 1,
    "aof_last_write_status": "ok",
    "maxmemory": 1_000_000,
    "maxmemory_policy": "noeviction",
}
ALWAYS = {"appendfsync": "always", "no-appendfsync-on-rewrite": "no"}


def test_a_server_that_is_set_up_well_gets_no_remark() -> None:
    assert remarks(GOOD_INFO, ALWAYS) == []
    assert remarks(GOOD_INFO | {"redis_version": "10.2.1"}, ALWAYS) == []


@pytest.mark.parametrize(
    ("info", "settings", "level", "word"),
    [
        ({"redis_version": "6.2.14"}, {}, "note", "6.2.14"),
        ({"role": "slave"}, {}, "bad", "replica"),
        ({"aof_enabled": 0}, {}, "bad", "appendonly"),
        ({"aof_last_write_status": "err"}, {}, "bad", "disk"),
        ({}, {"appendfsync": "everysec"}, "note", "everysec"),
        ({}, {"appendfsync": "no"}, "bad", "power cut"),
        ({}, {"no-appendfsync-on-rewrite": "yes"}, "note", "rewritten"),
        ({"maxmemory_policy": "allkeys-lru"}, {}, "bad", "noeviction"),
        ({"maxmemory_policy": "volatile-ttl"}, {}, "note", "before their time"),
    ],
)
def test_what_is_wrong_is_said(info: Values, settings: Values, level: str, word: str) -> None:
    (remark,) = remarks({**GOOD_INFO, **info}, {**ALWAYS, **settings})
    assert remark.level == level
    assert word in remark.text


def test_without_a_limit_nothing_is_evicted_whatever_the_policy() -> None:
    assert remarks({**GOOD_INFO, "maxmemory": 0, "maxmemory_policy": "allkeys-lru"}, ALWAYS) == []


def test_a_file_that_is_not_kept_makes_its_settings_no_matter() -> None:
    (remark,) = remarks({**GOOD_INFO, "aof_enabled": 0}, {"appendfsync": "no"})
    assert "appendonly" in remark.text


def test_a_real_server_is_asked(own_redis: RedisServer) -> None:
    assert look_at(own_redis.url) == []
    with own_redis.client() as client:
        client.config_set("appendfsync", "everysec")
    (remark,) = look_at(own_redis.url)
    assert "everysec" in remark.text


def test_a_server_that_lets_nobody_look_is_judged_by_what_it_says(tmp_path: Path) -> None:
    require_server()
    with RedisServer(tmp_path, *DURABLE, "--rename-command", "CONFIG", "") as server:
        (remark,) = look_at(server.url)
        assert "does not let us look" in remark.text


def test_a_cluster_says_once_what_all_its_masters_have_in_common(tmp_path: Path) -> None:
    require_server()
    with cluster_of_three(tmp_path, *VOLATILE) as nodes:
        (remark,) = look_at(nodes[1].url)
        assert "appendonly" in remark.text


def test_a_server_that_is_not_there_is_no_remark_but_an_error() -> None:
    with pytest.raises(LogUnavailable):
        look_at("redis://127.0.0.1:9")
