"""The server that a URL names, or the cluster it is part of: one link to each, and which key belongs to which."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from types import TracebackType
from typing import Any

from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import AskError, MovedError

from headrace.errors import LogUnavailable
from headrace.log.redis.link import Link, Request, packed
from headrace.log.redis.scripts import Script
from headrace.log.redis.wire import Answer

_HINT = "Is Redis there, neither full nor read-only? Everything is tried again by itself."

LOOK_EVERY_S = 0.5
"""How often to ask who has the slots of a server that is gone."""


class Servers:
    """An async context manager. `answer_within_s`: how long a round trip may take; `changed` is told when a server
    fails or comes back, which is found out by `probe`, a command.

    Raises on entering:
        LogUnavailable: nobody answers.
    """

    def __init__(
        self, url: str, *, answer_within_s: float, changed: Callable[[], None], probe: Sequence[bytes] = (b"PING",)
    ) -> None:
        self._pool = ConnectionPool.from_url(url, protocol=2, socket_timeout=None)
        self._answer_within_s = answer_within_s
        self._changed = changed
        self._probe = probe
        self._group = asyncio.TaskGroup()
        self._links: dict[tuple[str, int], Link] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._first: Link | None = None
        self._slots: list[Link] = []  # of a cluster; empty for a single server
        self._looking = False

    async def __aenter__(self) -> "Servers":
        await self._group.__aenter__()
        try:
            self._first = self._link(self.connection())
            info: bytes = await self.call(b"", (b"INFO", b"cluster"), within=self._answer_within_s)
            if b"cluster_enabled:1" in info:
                await self._look()
        except BaseException as exc:
            await self.__aexit__(type(exc), exc, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await self._group.__aexit__(None, None, None)

    @property
    def failing(self) -> str | None:
        """Why something is not taken at the moment, or None."""
        links = set(self._slots) if self._slots else filter(None, (self._first,))
        return next((link.failing for link in links if link.failing is not None), None)

    def connection(self, host: str = "", port: int = 0) -> AbstractConnection:
        """A new connection, not opened yet, to one server or to the one that the URL names."""
        options = self._pool.connection_kwargs | ({"host": host, "port": port} if host else {})
        connection: AbstractConnection = self._pool.connection_class(**options)
        return connection

    def connection_to_any(self) -> AbstractConnection:
        """A new connection to a server that can be reached, if there is one."""
        address = next((address for address, link in self._links.items() if link.connected), ("", 0))
        return self.connection(*address)

    # Asking

    def ask(self, key: bytes, parts: Sequence[bytes]) -> "asyncio.Future[Answer]":
        """Ask the server of `key`, now and until it answers."""
        return self._ask(key, parts, None)

    def run(self, script: Script, keys: Sequence[bytes], args: Sequence[bytes]) -> "asyncio.Future[Answer]":
        """As `ask`."""
        return self._ask(keys[0], (b"EVALSHA", script.sha, b"%d" % len(keys), *keys, *args), script)

    def _ask(self, key: bytes, parts: Sequence[bytes], script: Script | None) -> "asyncio.Future[Answer]":
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.route(Request(key, packed(parts), answer, script))
        return answer

    def route(self, request: Request) -> None:
        self._link_of(request).ask(request)

    def route_now(self, requests: Iterable[Request]) -> None:
        """All that is to be asked in this tick: nobody waits for its end."""
        by_link: dict[Link, list[Request]] = {}
        for request in requests:
            by_link.setdefault(self._link_of(request), []).append(request)
        for link, of_link in by_link.items():
            link.ask_now(of_link)

    async def call(self, key: bytes, parts: Sequence[bytes], *, within: float) -> Answer:
        return await self.answered(self.ask(key, parts), within=within)

    async def answered(self, answer: "asyncio.Future[Answer]", *, within: float | None) -> Answer:
        """Wait for an answer; `within` None: however long it takes.

        Raises:
            LogUnavailable: not within so many seconds; at once if the server is known to be gone.
        """
        link = self._first
        if within is not None and link is not None and not link.connected and not self._slots:
            answer.cancel()
            raise LogUnavailable(f"Redis is not there: {link.failing}.", hint=_HINT)
        try:
            async with asyncio.timeout(within):
                return await answer
        except TimeoutError as exc:
            why = self.failing or "it is slow"
            raise LogUnavailable(f"Redis did not answer within {within:g} s: {why}.", hint=_HINT) from exc
        except asyncio.CancelledError:
            if not answer.cancelled() or (task := asyncio.current_task()) is None or task.cancelling():
                raise
            raise LogUnavailable("The log is closed.", hint="Open it with `async with`.") from None

    def check(self) -> None:
        """Find out whether everybody is there."""
        for link in (self._first, *self._links.values()):
            if link is not None:
                link.check()

    def _link_of(self, request: Request) -> Link:
        link = self._slots[key_slot(request.key)] if self._slots and request.key else self._first
        if link is None:
            raise LogUnavailable("the log is closed", hint="Open it with `async with`.")
        return link

    # The servers of a cluster

    def _link(self, connection: AbstractConnection) -> Link:
        link = Link(
            connection,
            answer_within_s=self._answer_within_s,
            moved=self._move,
            changed=self._link_changed,
            probe=self._probe,
        )
        self._start(link.run())
        return link

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._group.create_task(work, name="redis")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _node(self, host: str, port: int) -> Link:
        if (host, port) not in self._links:
            self._links[host, port] = self._link(self.connection(host, port))
        return self._links[host, port]

    async def _look(self) -> None:
        """Ask who has which slots, and ask everything that waits for a server that fails of whoever has them now."""
        ranges = await self._ask_anybody((b"CLUSTER", b"SLOTS"))
        if not ranges:
            return
        assert self._first is not None
        slots = self._slots or [self._first] * REDIS_CLUSTER_HASH_SLOTS
        for first, last, master, *_ in ranges:
            link = self._node(master[0].decode() or self._pool.connection_kwargs["host"], master[1])
            slots[first : last + 1] = [link] * (last + 1 - first)
        self._slots = slots
        for link in (self._first, *self._links.values()):
            if link is not None and not link.connected:
                for request in link.take_back():
                    self.route(request)

    async def _ask_anybody(self, parts: Sequence[bytes]) -> Answer:
        """The answer of a server that can be reached; None if there is none."""
        for link in (self._first, *self._links.values()):
            if link is not None and link.connected:
                answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
                link.ask(Request(b"", packed(parts), answer))
                try:
                    async with asyncio.timeout(self._answer_within_s):
                        return await answer
                except (TimeoutError, LogUnavailable):
                    continue
        return None

    def _move(self, request: Request, error: AskError) -> None:
        link = self._node(error.host, error.port)
        if not isinstance(error, MovedError):
            link.ask(Request(b"", packed((b"ASKING",)), asyncio.get_running_loop().create_future()))
        else:
            self._look_soon()
        link.ask(request)

    def _link_changed(self, link: Link) -> None:
        if self._slots and not link.connected:
            self._look_soon()
        self._changed()

    def _look_soon(self) -> None:
        if not self._looking:
            self._looking = True
            self._start(self._look_until_whole())

    async def _look_until_whole(self) -> None:
        """A dead master's slots are another's after some seconds."""
        try:
            while True:
                await self._look()
                if all(link.connected for link in set(self._slots)):
                    return
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            self._looking = False
