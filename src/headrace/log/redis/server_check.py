"""Whether a Redis server is set up for a log: what it may lose, what it may throw away, and what to set instead.

What the server says of itself is read in one place and judged in another, which cannot wait.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec
import redis

from headrace.log.redis.connection import connect_blocking, unavailable_if_it_fails

OLDEST = (7, 0)
"""The oldest that Headrace is tested with. Valkey calls itself 7.2 here, whatever its own version."""
ANSWER_WITHIN_S = 2.0

SETTINGS = ("appendfsync", "no-appendfsync-on-rewrite")

_EVERYSEC = (
    "With everysec, a power cut loses a second of records that were acknowledged, and two when the disk stalls; then "
    "even a kill of Redis does. Who cannot afford that sets it to always."
)

Values = Mapping[str, Any]
"""INFO or CONFIG GET as the driver gives them: numbers where they look like some."""


class Remark(msgspec.Struct, frozen=True):
    """`bad`: nothing works, or runs get lost in ordinary operation; `note`: what an operator ought to know."""

    level: Literal["note", "bad"]
    text: str


def look_at(url: str) -> list[Remark]:
    """Ask the server, or each master of its cluster, and say what there is to say. Blocks, for seconds at most.

    Raises:
        LogUnavailable: one of them does not answer.
    """
    with unavailable_if_it_fails(), connect_blocking(url, timeout_s=ANSWER_WITHIN_S) as client:
        if isinstance(client, redis.Redis):
            return remarks(client.info(), _settings(client))
        masters = [client.get_redis_connection(node) for node in client.get_primaries()]
        found = (remark for master in masters for remark in remarks(master.info(), _settings(master)))
        return list(dict.fromkeys(found))  # what all of them have in common is said once


def _settings(client: redis.Redis) -> Values | None:
    try:
        return {str(name): value for name, value in client.config_get(*SETTINGS).items()}
    except redis.ResponseError:  # managed services let nobody look
        return None


def remarks(info: Values, settings: Values | None) -> list[Remark]:
    """What there is to say of a server; `settings` is None where it lets nobody look at them."""
    return [*_of_its_kind(info), *_of_its_file(info, settings), *_of_its_memory(info)]


def _of_its_kind(info: Values) -> Iterator[Remark]:
    version = str(info["redis_version"])
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        yield Remark("note", f"It is Redis {version}; Headrace is tested with {OLDEST[0]}.{OLDEST[1]} and later.")
    if info["role"] != "master":
        yield Remark("bad", "It is a replica, which takes no writes. Name its master in log.url.")


def _of_its_file(info: Values, settings: Values | None) -> Iterator[Remark]:
    if not info["aof_enabled"]:
        yield Remark("bad", "appendonly is no: when Redis ends, so do the runs of the last minutes. Set it to yes.")
        return
    if info.get("aof_last_write_status", "ok") != "ok":
        yield Remark("bad", "It cannot write its append-only file. Is its disk full?")
    if settings is None:
        yield Remark("note", f"It does not let us look at appendfsync. {_EVERYSEC}")
        return
    match settings["appendfsync"]:
        case "everysec":
            yield Remark("note", f"appendfsync is everysec. {_EVERYSEC}")
        case "no":
            yield Remark("bad", "appendfsync is no: a power cut loses half a minute. Set it to everysec or always.")
        case _ if settings.get("no-appendfsync-on-rewrite") == "yes":
            yield Remark("note", "no-appendfsync-on-rewrite is yes: while the file is rewritten, always is not kept.")


def _of_its_memory(info: Values) -> Iterator[Remark]:
    policy = info.get("maxmemory_policy", "noeviction")
    if not info.get("maxmemory") or policy == "noeviction":
        return
    if policy.startswith("allkeys"):
        yield Remark("bad", f"maxmemory-policy is {policy}: a full Redis throws runs away. Set it to noeviction.")
    else:
        yield Remark("note", f"maxmemory-policy is {policy}: a full Redis throws ended runs away before their time.")
