"""Appending to runs in Redis: the owner's batches, and single appends by anybody."""

import itertools
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from headrace.log.follow import is_terminal
from headrace.log.live import LiveRun
from headrace.log.redis.deployment import Deployment
from headrace.log.redis.link import Answer
from headrace.log.redis.scripts import APPEND
from headrace.log.redis.stored import body_of

Asked: TypeAlias = Answer
"""A future of what the append script answers."""


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
        self._fixed = (at.worker.encode(), at.keys.worker_prefix.encode())
        self._numbers = itertools.count(1)

    def number(self) -> bytes:
        """The next batch's number: it grows, so that one which comes late, or twice, is recognised."""
        return b"%d" % next(self._numbers)

    def batch(self, run: LiveRun, frames: Sequence[bytes], number: bytes) -> Asked:
        """What one tick adds to one run. Without frames it only asks for what others have added."""
        ends = b"1" if frames and is_terminal(frames[-1]) else b""
        head = (b"%d" % run.fence, b"%d" % run.head, number, b"", b"", ends)
        return self._ask(run.id, head, [body_of(frame) for frame in frames])

    def single(self, append: Single) -> Asked:
        head = (
            _text(append.fence),
            _text(append.known),
            b"",
            _text(append.expected),
            append.key.encode(),
            b"1" if append.ends else b"",
        )
        return self._ask(append.run_id, head, append.bodies)

    def _ask(self, run_id: str, head: Sequence[bytes], bodies: Sequence[bytes]) -> Asked:
        keys = self._keys
        names = [keys.log(run_id).encode(), keys.meta(run_id).encode(), keys.keys(run_id).encode()]
        worker, workers = self._fixed
        fixed = (run_id.encode(), worker, keys.follow(run_id).encode(), workers)
        return self._servers.run(APPEND, names, (*fixed, *head, *bodies))


def _text(number: int | None) -> bytes:
    return b"" if number is None else b"%d" % number
