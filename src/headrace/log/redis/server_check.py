"""Whether a Redis server is set up for a log: what it may lose, what it may throw away, and what to set instead.

What the server says is read in one place and judged in another, which cannot wait.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec
import redis

from headrace.log.redis.connection import connect_blocking, unavailable_if_it_fails

OLDEST = (7, 0)
"""What Headrace is tested with. Valkey says 7.2 here."""
ANSWER_WITHIN_S = 2.0

Values = Mapping[str, str | int | float]


class Remark(msgspec.Struct, frozen=True):
    """`bad`: runs get lost in ordinary operation, or nothing works; `note`: good to know."""

    level: Literal["note", "bad"]
    text: str


def look_at(url: str) -> list[Remark]:
    """Ask the server, and of a cluster each master, what is to be said about it. Blocks.

    Raises:
        LogUnavailable: it does not answer.
    """
    with unavailable_if_it_fails(), connect_blocking(url, timeout_s=ANSWER_WITHIN_S) as client:
        if isinstance(client, redis.Redis):
            return remarks(client.info(), _settings(client))
        masters = [node.redis_connection for node in client.get_primaries()]
        found = [remark for master in masters for remark in remarks(master.info(), _settings(master))]
        return list(dict.fromkeys(found))


def _settings(client: redis.Redis) -> Values | None:
    try:
        return client.config_get("appendfsync", "no-appendfsync-on-rewrite")
    except redis.ResponseError:  # managed services do not let anybody look
        return None


def remarks(info: Values, settings: Values | None) -> list[Remark]:
    """What is to be said about a server, from its INFO and its settings (None where it does not let us look)."""
    return [
        Remark(level, text)
        for level, text in (*_what_it_is(info), *_what_it_keeps(info, settings), *_what_it_throws_away(info))
    ]
