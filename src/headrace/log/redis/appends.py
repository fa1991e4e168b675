"""Appending to runs in Redis: the owner's batches, and single appends by anybody."""

import asyncio
import itertools
from collections.abc import Sequence

import msgspec

from headrace.log.follow import is_terminal
from headrace.log.live import LiveRun
from headrace.log.redis.deployment import Deployment
from headrace.log.redis.link import Asker, Request, packed_parts
from headrace.log.redis.scripts import APPEND
from headrace.log.redis.stored import body_of
from headrace.log.redis.wire import Answer


class Single(msgspec.Struct, frozen=True, kw_only=True):
    """An append outside the owner's batches. `key` makes it safe to send twice; `known` is the head as its owner
    knows it, None for others."""

    run_id: str
    bodies: Sequence[bytes]
    key: str
    ends: bool
    fence: int | None
    known: int | None
    expected: int | None


class Appends:
    def __init__(self, at: Deployment) -> None:
        self._servers = at.writes
        self._keys = at.keys
        self._worker = at.worker.encode()
        self._numbers = itertools.count(1)
        self._around: dict[int, list[bytes]] = {}

    def number(self) -> bytes:
        """The next batch's number: it grows, so that one which comes late, or twice, is recognised."""
        return b"%d" % next(self._numbers)

    def batch(self, run: LiveRun, frames: Sequence[bytes], number: bytes, asker: Asker) -> Request:
        """What one tick adds to one run. Without frames it only asks for what others have added."""
        ends = b"1" if frames and is_terminal(frames[-1]) else b""
        head = (b"%d" % run.fence, b"%d" % run.head, number, b"", b"", ends)
        return self._request(run.id, (*head, *map(body_of, frames)), asker)

    def single(self, append: Single) -> "asyncio.Future[Answer]":
        """Ask, too."""
        head = (
            _text(append.fence),
            _text(append.known),
            b"",
            _text(append.expected),
            append.key.encode(),
            b"1" if append.ends else b"",
        )
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._servers.route(self._request(append.run_id, (*head, *append.bodies), answer))
        return answer

    def _request(self, run_id: str, parts: Sequence[bytes], asker: Asker) -> Request:
        run = run_id.encode()
        around = self._around.get(len(run)) or self._pieces_around(run)
        command = b"*%d\r\n%b%b" % (_FIXED + len(parts), run.join(around), packed_parts(parts))
        return Request(self._keys.log(run_id).encode(), command, asker, APPEND)

    def _pieces_around(self, run: bytes) -> list[bytes]:
        """What stands around a run's id in each of its appends. It is the same for all ids of one length, and making it
        once makes a command in 7 µs instead of 12."""
        keys, nobody = self._keys, "\0" * len(run)
        names = [name(nobody).encode() for name in (keys.log, keys.meta, keys.keys)]
        fixed = (nobody.encode(), self._worker, keys.follow(nobody).encode(), keys.worker_prefix.encode())
        parts = (b"EVALSHA", APPEND.sha, b"3", *names, *fixed)
        assert len(parts) == _FIXED
        self._around[len(run)] = packed_parts(parts).split(nobody.encode())
        return self._around[len(run)]


_FIXED = 10
"""Parts of an append's command that depend on nothing but its run."""


def _text(number: int | None) -> bytes:
    return b"" if number is None else b"%d" % number
