"""One connection to one server, kept open. What is asked within a round trip goes out together with the next one.

The driver connects, authenticates, encrypts and parses; its pipelines are not used, because they cost three times as
much per command. Everything that is asked may be sent twice (see scripts.py), so a broken connection or a server that
takes nothing at the moment is tried again until somebody gives up waiting.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import AskError, ClusterDownError, NoScriptError, RedisError, ResponseError

from headrace.errors import LogUnavailable

log = logging.getLogger(__name__)

Answer: TypeAlias = Any
"""What Redis answers: bytes, int, None, or a list of them."""

RETRY_S = (0.02, 0.1, 0.25, 0.5)
"""Waits before the next try; the last one repeats."""

_REFUSALS = ("OOM", "READONLY", "MISCONF", "NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "LOADING")
"""What a server says that may take the same thing later: no memory, no disk, no master, not now."""


class Request:
    """A command on its way. `key` says which server of a cluster it belongs to."""

    __slots__ = ("answer", "key", "parts")

    def __init__(self, key: bytes, parts: Sequence[bytes], answer: "asyncio.Future[Answer]") -> None:
        self.key = key
        self.parts = parts
        self.answer = answer


def packed(parts: Sequence[bytes]) -> bytes:
    """A command as Redis reads it."""
    return b"*%d\r\n%b" % (len(parts), b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts]))


class Link:
    """`run` it in a task of its own. `failing` says why nothing, or nothing new, is taken at the moment.

    `answer_within_s`: how long a round trip may take before the connection is given up. `source_of` gives a script's
    text for its hash. `moved` is told of requests that belong to another server, `changed` of changes of `failing`.
    `probe` is a command that finds out whether it is taken again.
    """

    def __init__(
        self,
        connection: AbstractConnection,
        *,
        answer_within_s: float,
        source_of: Callable[[bytes], bytes],
        moved: Callable[[Request, AskError], None],
        changed: Callable[["Link"], None],
        probe: Sequence[bytes],
    ) -> None:
        self._connection = connection
        self._answer_within_s = answer_within_s
        self._source_of = source_of
        self._moved = moved
        self._changed = changed
        self._probe = probe
        self._waiting: deque[Request] = deque()
        self._flying: deque[Request] = deque()
        self._due = asyncio.Event()
        self._refusal: ResponseError | None = None
        self._tries = 0
        self.failing: str | None = None
        self.connected = True

    def ask(self, request: Request) -> None:
        self._waiting.append(request)
        self._due.set()

    def check(self) -> None:
        """Find out whether the server is there."""
        if not self._waiting:
            self.ask(Request(b"", self._probe, asyncio.get_running_loop().create_future()))

    def take_back(self) -> list[Request]:
        """Everything that waits: it will be asked elsewhere."""
        taken = list(self._waiting)
        self._waiting.clear()
        return taken

    async def run(self) -> None:
        try:
            while True:
                await self._due.wait()
                self._due.clear()
                await self._go()
        finally:
            for request in (*self._flying, *self._waiting):
                request.answer.cancel()
            await self._connection.disconnect(nowait=True)

    async def _go(self) -> None:
        try:
            async with asyncio.timeout(self._answer_within_s):
                await self._round_trip()
        except (RedisError, OSError, TimeoutError) as exc:
            self._again(exc, connected=False)
        else:
            if self._refusal is None:
                self._tries = 0
                self._set(None, connected=True)
                return
            self._again(self._refusal, connected=True)
        await self._connection.disconnect(nowait=True)  # the address may belong to another server by now
        await asyncio.sleep(RETRY_S[min(self._tries - 1, len(RETRY_S) - 1)])

    async def _round_trip(self) -> None:
        self._refusal = None
        if not self._connection.is_connected:
            await self._connection.connect()  # type: ignore[no-untyped-call]
        self._flying = deque(request for request in self._waiting if not request.answer.done())  # some gave up
        self._waiting.clear()
        await self._connection.send_packed_command(
            b"".join([packed(request.parts) for request in self._flying]), check_health=False
        )
        again: list[Request] = []
        while self._flying:
            answer = await self._read()
            self._settle(self._flying.popleft(), answer, again)
        self._waiting.extendleft(reversed(again))
        if self._waiting:
            self._due.set()

    async def _read(self) -> Answer:
        try:
            return await self._connection.read_response(timeout=math.inf)
        except ResponseError as exc:
            return exc

    def _settle(self, request: Request, answer: Answer, again: list[Request]) -> None:
        if not isinstance(answer, ResponseError):
            if not request.answer.done():
                request.answer.set_result(answer)
        elif isinstance(answer, NoScriptError):
            again.append(self._in_full(request))
        elif isinstance(answer, AskError):
            self._moved(request, answer)
        elif isinstance(answer, ClusterDownError) or _is_refusal(answer):
            self._refusal = answer
            again.append(request)
        elif not request.answer.done():
            request.answer.set_exception(LogUnavailable(f"Redis answered: {answer}", hint="This should not happen."))

    def _in_full(self, request: Request) -> Request:
        """A script that the server does not know yet, with its text."""
        source = self._source_of(request.parts[1])
        return Request(request.key, (b"EVAL", source, *request.parts[2:]), request.answer)

    def _again(self, exc: Exception, *, connected: bool) -> None:
        self._tries += 1
        self._waiting.extendleft(reversed(self._flying))
        self._flying.clear()
        self._set(str(exc) or type(exc).__name__, connected=connected)
        self.check()
        self._due.set()

    def _set(self, failing: str | None, *, connected: bool) -> None:
        before = (self.failing is None, self.connected)
        self.failing, self.connected = failing, connected
        if before != (failing is None, connected):
            log.log(logging.INFO if failing is None else logging.ERROR, "Redis: %s", failing or "answers again")
            with suppress(RuntimeError):  # the loop is going down
                self._changed(self)


def _is_refusal(error: ResponseError) -> bool:
    code = getattr(error, "status_code", None) or str(error).partition(" ")[0]
    return code in _REFUSALS
