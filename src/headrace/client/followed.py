"""One run followed over a socket that many share.

A reader that falls behind by `HELD_ITEMS` is unfollowed and followed again once it has caught up, so that a slow
reader of one run neither fills the memory nor holds up the others.
"""

import asyncio
import uuid
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Literal, Protocol

from headrace.client.hub import Answered, Wanted
from headrace.client.retry import Retry
from headrace.client.session import Item, Session
from headrace.client.text import Retracted, pieces
from headrace.errors import ClientError, HeadraceError
from headrace.state import RunState

HELD_ITEMS = 4096


class FollowOwner(Protocol):
    """The socket, as a followed run sees it."""

    def retry(self) -> Retry: ...

    async def ask(self, kind: str, **fields: Any) -> Answered: ...

    async def follow_again(self, followed: "Followed") -> None: ...

    async def forget(self, run_id: str) -> None: ...


class Followed:
    """One run followed over the socket. `state` is the run as far as it has come here."""

    def __init__(self, owner: FollowOwner, session: Session, wanted: Wanted) -> None:
        self.id = session.run_id
        self._owner = owner
        self.session = session
        self.wanted = wanted
        self._items: deque[Item] = deque()
        self._changed = asyncio.Event()
        self._paused = False
        self._ended = False
        self._error: HeadraceError | None = None
        self._retry: Retry | None = None

    @property
    def state(self) -> RunState:
        return self.session.state

    async def events(self) -> AsyncGenerator[Item, None]:
        """What comes of the run, once and in order, to its terminal record. For one reader.

        Raises:
            HeadraceError: the server refused, or could not be reached within the client's patience.
        """
        while True:
            while self._items:
                self._retry = None
                yield self._items.popleft()
            if self._error is not None:
                await self._come_back(self._error)
            if self._ended:
                return
            if self._paused:
                self._paused = False
                await self._owner.follow_again(self)
            await self._changed.wait()
            self._changed.clear()

    async def _come_back(self, error: HeadraceError) -> None:
        """This run could not be read: follow it once more, later. Raises the error when that would not help."""
        if isinstance(error, ClientError) or not error.retryable:
            raise error
        self._retry = self._retry or self._owner.retry()
        await asyncio.sleep(self._retry.wait(asyncio.get_running_loop().time(), reason=error.message))
        self._error, self._ended = None, False
        await self._owner.follow_again(self)

    async def text(self) -> AsyncGenerator[str | Retracted, None]:
        """What the run says, piece by piece. Raises as `events`."""
        async with aclosing(pieces(self.events())) as said:
            async for piece in said:
                yield piece

    async def result(self) -> RunState:
        """Read to the end and return how it ended."""
        async for _ in self.events():
            pass
        return self.state

    async def unfollow(self) -> None:
        """Nothing more comes of this run here; the run goes on."""
        self._items.clear()
        self.finish(None)
        await self._owner.forget(self.id)

    async def cancel(self, reason: str | None = None) -> None:
        """Ask the run to stop; its terminal record follows."""
        await self._owner.ask("cancel", run_id=self.id, reason=reason)

    async def steer(
        self,
        text: str,
        mode: Literal["interrupt", "next_turn"] = "next_turn",
        *,
        idempotency_key: str | None = None,
    ) -> str:
        """As Run.steer."""
        key = idempotency_key or str(uuid.uuid4())
        return (await self._owner.ask("steer", run_id=self.id, text=text, mode=mode, key=key)).steer_id

    async def answer(self, input_id: str, value: Any) -> None:
        """As Run.answer."""
        await self._owner.ask("input", run_id=self.id, input_id=input_id, value=value)

    def put(self, item: Item) -> bool:
        """Keep an item for the reader. False: stop, the reader has fallen behind."""
        self._items.append(item)
        self._changed.set()
        if len(self._items) >= HELD_ITEMS and not self.session.ended:
            self._paused = True
        return not self._paused

    def finish(self, error: HeadraceError | None) -> None:
        self._ended = True
        self._error = error
        self._changed.set()
