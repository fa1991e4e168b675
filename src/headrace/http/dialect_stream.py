"""A run as another protocol's server-sent events: the same follower and socket, with a fold in between.

The frames are never merged: these protocols number or count what they send.
"""

from collections.abc import Sequence
from typing import Protocol

from headrace.errors import Draining, HeadraceError, LogUnavailable
from headrace.http.exchange import Exchange, Headers
from headrace.http.outlet import Send
from headrace.http.pulse import Pulse
from headrace.http.stream import HEARTBEAT, STREAM_HEADERS, EventStream
from headrace.log.follow import Follower, is_terminal
from headrace.log.ports import Log
from headrace.state import RunState
from headrace.wire.view import View


class Fold(Protocol):
    """A dialect: the log's frames in, its own out."""

    def feed(self, frames: Sequence[bytes]) -> bytes: ...

    def snapshot(self, state: RunState) -> bytes: ...

    def cut(self, error: HeadraceError) -> bytes:
        """The stream ends before the run does: what a client that cannot see this by itself must be told."""
        ...

    @property
    def broken(self) -> bool:
        """Nothing more will come, whatever the run does."""
        ...


class DialectStream(EventStream):
    """`ended` is true once the terminal record has been given to it."""

    __slots__ = ("_fold", "ended")

    def __init__(self, send: Send, pulse: Pulse, fold: Fold) -> None:
        super().__init__(send, pulse, View("token"))
        self._preface = HEARTBEAT  # not every client of these protocols has heard of `retry:`
        self._fold = fold
        self.ended = False

    def frames(self, frames: Sequence[bytes]) -> bool:
        self.ended = is_terminal(frames[-1])
        return self._show(self._fold.feed(frames))

    def snapshot(self, state: RunState) -> bool:
        return self._show(self._fold.snapshot(state))

    def fail(self, error: Exception) -> None:
        self._cut(LogUnavailable("The run cannot be read at the moment.", hint="Ask again."))
        super().fail(error)

    def go_away(self) -> None:
        self._cut(Draining("This server is going away.", hint="Ask again."))
        super().go_away()

    def _cut(self, error: HeadraceError) -> None:
        if not self.ended and not self._outlet.busy:
            self._write(self._fold.cut(error))

    def _show(self, shown: bytes) -> bool:
        took = self._write(shown)
        if self._fold.broken and not self.ended:
            super().go_away()
        return took


async def open_dialect_stream(
    exchange: Exchange, log: Log, pulse: Pulse, fold: Fold, *, run_id: str, headers: Headers = ()
) -> DialectStream:
    """Send the headers at once and follow the run from its first record, until `close` is called."""
    await exchange.start(200, [*STREAM_HEADERS, *headers])
    stream = DialectStream(exchange.send, pulse, fold)
    stream.follower = Follower(log, run_id, 0, stream)
    stream.follower.start()
    stream.open()
    return stream
