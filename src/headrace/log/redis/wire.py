"""The socket of a connection that the driver has opened, without the driver: bytes out, answers in.

The driver's streams, coroutines and time-outs, and a future for each answer, cost about 16 of the 75 µs of an append
that makes its round trip alone. So once it has connected, authenticated and encrypted, its transport is ours, and
answers are parsed where the loop delivers them.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import hiredis
from redis.asyncio.connection import AbstractConnection, DefaultParser
from redis.exceptions import InvalidResponse

Answer: TypeAlias = Any
"""What Redis answers: bytes, int, None, or a list of them."""


class Wire(asyncio.Protocol):
    """`heard` gets each answer, in order; one that is an error, too. `broken` is told why no more will come.

    Neither may raise.

    Raises:
        ConnectionResetError: it is closed already.
    """

    def __init__(
        self,
        connection: AbstractConnection,
        *,
        heard: Callable[[Answer], None],
        broken: Callable[[Exception], None],
    ) -> None:
        # The driver keeps its writer to itself. Nothing is lost on the way: it has read every answer it asked for.
        writer = connection._writer
        assert writer is not None, "not connected"
        self._transport = cast(asyncio.Transport, writer.transport)
        if self._transport.is_closing():
            raise _closed()  # its protocol has been told, or is about to be: we would never hear of it
        self._transport.set_protocol(self)
        self._reader = hiredis.Reader(protocolError=InvalidResponse, replyError=DefaultParser.parse_error)
        self._heard = heard
        self._broken = broken
        self._left = False

    def leave(self) -> None:
        """Hear nothing more; the connection is still to be closed."""
        self._left = True

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while not self._left and (answer := self._reader.gets()) is not False:
                self._heard(answer)
        except InvalidResponse as exc:
            self._tell(exc)

    def connection_lost(self, exc: Exception | None) -> None:
        self._tell(exc or _closed())

    def _tell(self, exc: Exception) -> None:
        if not self._left:
            self._broken(exc)


def _closed() -> ConnectionResetError:
    return ConnectionResetError("the server has closed the connection")
