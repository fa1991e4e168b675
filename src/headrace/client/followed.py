"""One run followed over a socket that many share.

A reader that falls behind by `HELD_ITEMS` is unfollowed and followed again once it has caught up, so that a slow
reader of one run neither fills the memory nor holds up the others.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Literal, Protocol

from headrace.client.hub import Answered
from headrace.client.session import Item, Session
from headrace.client.text import Retracted, pieces
from headrace.errors import HeadraceError
from headrace.state import RunState

HELD_ITEMS = 4096


class FollowOwner(Protocol):
    """The socket, as a followed run sees it."""

    async def ask(self, kind: str, *, repeatable: bool = True, **fields: Any) -> Answered: ...

    async def follow_again(self, session: Session, chunk: str) -> None: ...

    async def forget(self, run_id: str) -> None: ...


class Followed:
    """One run followed over the socket. `state` is the run as far as it has come here."""

    def __init__(self, owner: FollowOwner, session: Session, chunk: str) -> None:
        self.id = session.run_id
        self._owner = owner
        self._session = session
        self._chunk = chunk
        self._items: deque[Item] = deque()
        self._changed = asyncio.Event()
        self._paused = False
        self._ended = False
        self._error: HeadraceError | None = None

    @property
    def state(self) -> RunState:
        return self._session.state

    async def events(self) -> AsyncGenerator[Item, None]:
        """What comes of the run, once and in order, to its terminal record. For one reader.

        Raises:
            HeadraceError: the server refused, or could not be reached within the client's patience.
        """
        while True:
            while self._items:
                yield self._items.popleft()
            if self._error is not None:
                raise self._error
            if self._ended:
                return
            if self._paused:
                self._paused = False
                await self._owner.follow_again(self._session, self._chunk)
            await self._changed.wait()
            self._changed.clear()

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

    async def steer(self, text: str, mode: Literal["interrupt", "next_turn"] = "next_turn") -> str:
        """As Run.steer."""
        return (await self._owner.ask("steer", repeatable=False, run_id=self.id, text=text, mode=mode)).steer_id

    async def answer(self, input_id: str, value: Any) -> None:
        """As Run.answer."""
        await self._owner.ask("input", run_id=self.id, input_id=input_id, value=value)

    def put(self, item: Item) -> bool:
        """Keep an item for the reader. False: stop, the reader has fallen behind."""
        self._items.append(item)
        self._changed.set()
        if len(self._items) >= HELD_ITEMS and not self._session.ended:
            self._paused = True
        return not self._paused

    def finish(self, error: HeadraceError | None) -> None:
        self._ended = True
        self._error = error
        self._changed.set()
