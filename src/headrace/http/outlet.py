"""One client connection's way out, driven by whoever has something to say.

ASGI's `send` is a coroutine, but it only waits when the client's socket is full. So the publisher runs it itself, in
the log's own tick: no task and no queue per follower (a hop costs 5-27 µs). When it does wait, a task of the outlet
finishes that one message, the outlet says it is busy, and the follower keeps its cursor until there is room again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, MutableMapping
from types import coroutine
from typing import Any

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Coroutine[Any, Any, None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


@coroutine
def _finish(sending: Coroutine[Any, Any, None], waiting: Any) -> Generator[Any, Any, None]:
    """Await the rest of a coroutine that has already been started and waits for `waiting`."""
    while True:
        try:
            sent = yield waiting
        except BaseException as exc:
            waiting = sending.throw(exc)
        else:
            try:
                waiting = sending.send(sent)
            except StopIteration:
                return


class Outlet:
    """Sends messages in order. `on_ready` is called when a busy outlet has room again, `on_lost` when it broke.

    `write` is a quicker way for pieces of a body, where the server has one: it writes and says True, or does nothing
    and says False, and then `send` is used.
    """

    __slots__ = ("_rest", "_send", "_write", "on_lost", "on_ready")

    def __init__(
        self,
        send: Send,
        *,
        on_ready: Callable[[], None],
        on_lost: Callable[[], None],
        write: Callable[[bytes], bool] | None = None,
    ) -> None:
        self._send = send
        self._write = write
        self._rest: asyncio.Task[None] | None = None
        self.on_ready = on_ready
        self.on_lost = on_lost

    @property
    def busy(self) -> bool:
        return self._rest is not None

    def send(self, message: Message) -> bool:
        """Send now. False if the client is slow: do not send again until `on_ready`."""
        assert self._rest is None, "a busy outlet was used"
        sending = self._send(message)
        try:
            waiting = sending.send(None)
        except StopIteration:
            return True
        except Exception:
            self.on_lost()
            return False
        self._rest = asyncio.get_running_loop().create_task(self._wait(sending, waiting))
        return False

    def body(self, piece: bytes) -> bool:
        """Send a piece of a streaming answer. As `send`."""
        assert self._rest is None, "a busy outlet was used"
        if self._write is not None and self._write(piece):
            return True
        return self.send({"type": "http.response.body", "body": piece, "more_body": True})

    async def drained(self) -> None:
        """Wait until the message under way has been taken."""
        if self._rest is not None:
            await asyncio.wait([self._rest])

    def close(self) -> None:
        """Give up what is under way."""
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None

    async def _wait(self, sending: Coroutine[Any, Any, None], waiting: Any) -> None:
        try:
            await _finish(sending, waiting)
        except Exception:
            self._rest = None
            self.on_lost()
            return
        self._rest = None
        self.on_ready()
