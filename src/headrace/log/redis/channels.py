"""Hearing of changes: one connection of a process that listens to all channels which somebody here cares about.

A message is a hint and may be lost. So whenever listening begins, for the first time or again after the connection
broke, `begun` is called for each channel: whatever it tells of is to be looked at then.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import suppress

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from headrace.log.redis.link import RETRY_S, packed

log = logging.getLogger(__name__)

PING_EVERY_S = 5.0


class Channels:
    """Run `hear` and `speak` in tasks of their own.

    `heard` gets channel and message, `begun` a channel, `broken` nothing. None of them may wait or raise.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractConnection],
        *,
        heard: Callable[[bytes, bytes], None],
        begun: Callable[[bytes], None],
        broken: Callable[[], None],
    ) -> None:
        self._connect = connect
        self._heard = heard
        self._begun = begun
        self._broken = broken
        self._connection: AbstractConnection | None = None
        self._wanted: set[bytes] = set()
        self._changes: list[tuple[bytes, bytes]] = []
        self._due = asyncio.Event()

    def listen(self, channel: bytes) -> None:
        self._wanted.add(channel)
        self._change(b"SUBSCRIBE", channel)

    def ignore(self, channel: bytes) -> None:
        self._wanted.discard(channel)
        self._change(b"UNSUBSCRIBE", channel)

    def _change(self, command: bytes, channel: bytes) -> None:
        self._changes.append((command, channel))
        self._due.set()

    async def hear(self) -> None:
        tries = 0
        while True:
            connection = self._connect()
            try:
                async with asyncio.timeout(PING_EVERY_S):
                    await connection.connect()  # type: ignore[no-untyped-call]
                self._connection, tries = connection, 0
                await self._listen(connection)
            except (RedisError, OSError, TimeoutError) as broken:
                log.warning("Redis: its messages are not heard: %s", broken)
            finally:
                await connection.disconnect(nowait=True)
            self._broken()
            await asyncio.sleep(RETRY_S[min(tries, len(RETRY_S) - 1)])
            tries += 1

    async def _listen(self, connection: AbstractConnection) -> None:
        self._changes = [(b"SUBSCRIBE", channel) for channel in self._wanted]
        self._due.set()
        while True:
            async with asyncio.timeout(2 * PING_EVERY_S):
                message = await connection.read_response(timeout=math.inf)
            if message[0] == b"message":
                self._heard(message[1], message[2])
            elif message[0] == b"subscribe":
                self._begun(message[1])

    async def speak(self) -> None:
        """Say what is to be heard from now on, and something now and then, so that a dead connection is found out."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(PING_EVERY_S):
                    await self._due.wait()
            self._due.clear()
            if self._connection is None or not self._connection.is_connected:
                continue  # all that is wanted is said once it is
            changes, self._changes = self._changes or [(b"PING", b"")], []
            with suppress(RedisError, OSError):  # whoever hears finds out too
                await self._connection.send_packed_command(b"".join(map(packed, changes)), check_health=False)
