"""One connection to one server, kept open. What is asked within a round trip goes out together with the next one.

The driver connects, authenticates and encrypts; the rest is wire.py. Everything that is asked may be sent twice (see
scripts.py), so a broken connection or a server that takes nothing at the moment is tried again until somebody gives
up waiting.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Protocol

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import AskError, ClusterDownError, InvalidResponse, NoScriptError, RedisError, ResponseError

from headrace.errors import LogUnavailable
from headrace.log.redis.scripts import Script
from headrace.log.redis.wire import Answer, Wire

log = logging.getLogger(__name__)

RETRY_S = (0.02, 0.1, 0.25, 0.5)
"""Waits before the next try; the last one repeats."""

_REFUSALS = ("OOM", "READONLY", "MISCONF", "NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "LOADING")
"""What a server says that may take the same thing later: no memory, no disk, no master, not now."""


class Asker(Protocol):
    """Who gets an answer: a future, or what saves one where microseconds count. One that is `done` has given up."""

    def done(self) -> bool: ...
    def set_result(self, answer: Answer, /) -> None: ...
    def set_exception(self, error: Exception, /) -> None: ...
    def cancel(self) -> object:
        """No answer will come: the log is closed."""


class Request:
    """A command on its way, as Redis reads it. `key` says which server of a cluster it belongs to; `script` is what
    it runs, if it is one."""

    __slots__ = ("asker", "command", "key", "script")

    def __init__(self, key: bytes, command: bytes, asker: Asker, script: Script | None = None) -> None:
        self.key = key
        self.command = command
        self.asker = asker
        self.script = script

    def give_text(self) -> None:
        """Send a script that the server does not know yet with its text."""
        assert self.script is not None
        by_name, by_text = (b"EVALSHA", self.script.sha), (b"EVAL", self.script.source)
        self.command = self.command.replace(packed_parts(by_name), packed_parts(by_text), 1)


def packed(parts: Sequence[bytes]) -> bytes:
    """A command as Redis reads it."""
    return b"*%d\r\n%b" % (len(parts), packed_parts(parts))


def packed_parts(parts: Sequence[bytes]) -> bytes:
    """Some of a command's parts."""
    return b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])


class Link:
    """`run` it in a task of its own. `failing` says why nothing, or nothing new, is taken at the moment.

    `answer_within_s`: how long a round trip may take before the connection is given up. `moved` is told of requests
    that belong to another server, `changed` of changes of `failing`. `probe` is a command that finds out whether it is
    taken again.
    """

    def __init__(
        self,
        connection: AbstractConnection,
        *,
        answer_within_s: float,
        moved: Callable[[Request, AskError], None],
        changed: Callable[["Link"], None],
        probe: Sequence[bytes],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._answer_within_s = answer_within_s
        self._moved = moved
        self._changed = changed
        self._probe = packed(probe)
        self._waiting: deque[Request] = deque()
        self._flying: deque[Request] = deque()
        self._again: list[Request] = []  # answered, but not finally: what flew with them is still to be answered
        self._refusal: ResponseError | None = None
        self._sending_soon = False
        self._sent = 0.0
        self._watching: asyncio.TimerHandle | None = None
        self._wire: Wire | None = None
        self._broken: asyncio.Future[None] = self._loop.create_future()
        self._tries = 0
        self.failing: str | None = None
        self.connected = True

    # Asking

    def ask(self, request: Request) -> None:
        """Send it at the end of this tick, together with what else is asked in it."""
        self._waiting.append(request)
        if not self._flying and not self._sending_soon:
            self._sending_soon = True
            self._loop.call_soon(self._send_gathered)

    def ask_now(self, requests: Iterable[Request]) -> None:
        """Send them at once, which saves a turn of the loop."""
        self._waiting.extend(requests)
        self._send()

    def check(self) -> None:
        """Find out whether the server is there, if nobody who still waits does."""
        if all(request.asker.done() for request in self._waiting):
            self.ask(Request(b"", self._probe, self._loop.create_future()))

    def take_back(self) -> list[Request]:
        """Everything that waits: it will be asked elsewhere."""
        taken = list(self._waiting)
        self._waiting.clear()
        return taken

    def _send_gathered(self) -> None:
        self._sending_soon = False
        self._send()

    def _send(self) -> None:
        """Send what waits, if nothing is under way."""
        if self._flying or self._wire is None:
            return
        self._flying.extend([request for request in self._waiting if not request.asker.done()])  # some gave up
        self._waiting.clear()
        if self._flying:
            self._sent = self._loop.time()
            if self._watching is None:
                self._watch()
            self._wire.write(b"".join([request.command for request in self._flying]))

    def _watch(self) -> None:
        """Give the connection up when a round trip takes too long. One timer for many of them: a timer each would cost
        as much as sending."""
        left = self._sent + self._answer_within_s - self._loop.time()
        self._watching = None
        if self._flying and left > 0:
            self._watching = self._loop.call_later(left, self._watch)
        elif self._flying:
            self._break(TimeoutError())

    # The connection

    async def run(self) -> None:
        try:
            while True:
                try:
                    await self._serve()
                except (RedisError, OSError, TimeoutError) as exc:
                    self._ask_again(exc, connected=exc is self._refusal)
                await self._connection.disconnect(nowait=True)  # the address may belong to another server by now
                await asyncio.sleep(RETRY_S[min(self._tries - 1, len(RETRY_S) - 1)])
        finally:
            if self._watching is not None:
                self._watching.cancel()
            for request in (*self._again, *self._flying, *self._waiting):
                request.asker.cancel()
            await self._connection.disconnect(nowait=True)

    async def _serve(self) -> None:
        """Connect, and stay so until the connection is broken. Raises what broke it."""
        self._refusal = None
        self._broken = self._loop.create_future()
        async with asyncio.timeout(self._answer_within_s):
            await self._connection.connect()  # type: ignore[no-untyped-call]
        self._wire = Wire(self._connection, heard=self._heard, broken=self._break)
        if self.failing is not None:
            self.check()
        self._send()
        try:
            await self._broken
        finally:
            self._leave()

    def _leave(self) -> None:
        if self._wire is not None:
            self._wire.leave()
            self._wire = None

    def _break(self, why: Exception) -> None:
        """Use this connection no more."""
        self._leave()
        if not self._broken.done():
            self._broken.set_exception(why)

    def _ask_again(self, exc: Exception, *, connected: bool) -> None:
        self._tries += 1
        self._waiting.extendleft(reversed((*self._again, *self._flying)))
        self._again.clear()
        self._flying.clear()
        self._set(str(exc) or type(exc).__name__, connected=connected)

    # Answers

    def _heard(self, answer: Answer) -> None:
        if not self._flying or (isinstance(answer, RedisError) and not isinstance(answer, ResponseError)):
            # What is no answer to a command is about the connection: too many clients, or the server is still loading.
            self._break(answer if isinstance(answer, RedisError) else InvalidResponse("nobody asked for this answer"))
            return
        try:
            self._settle(self._flying[0], answer)
        except Exception:
            log.exception("what Redis has answered could not be taken in")
        self._flying.popleft()  # not before: what is asked meanwhile goes with the next ones
        if not self._flying:
            self._round_trip_over()

    def _settle(self, request: Request, answer: Answer) -> None:
        if not isinstance(answer, ResponseError):
            if not request.asker.done():
                request.asker.set_result(answer)
        elif isinstance(answer, NoScriptError):
            request.give_text()
            self._again.append(request)
        elif isinstance(answer, AskError):
            self._moved(request, answer)
        elif isinstance(answer, ClusterDownError) or _is_refusal(answer):
            self._refusal = answer
            self._again.append(request)
        elif not request.asker.done():
            request.asker.set_exception(LogUnavailable(f"Redis answered: {answer}", hint="This should not happen."))

    def _round_trip_over(self) -> None:
        if self._refusal is not None:
            self._break(self._refusal)
            return
        self._waiting.extendleft(reversed(self._again))
        self._again.clear()
        self._tries = 0
        self._set(None, connected=True)
        self._send()

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
