"""What a run says, piece by piece, out of its records."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from headrace.client.frames import Snapshot
from headrace.client.session import Item
from headrace.events import TextDelta, TextRetracted


class Retracted(msgspec.Struct, frozen=True, kw_only=True):
    """Text that was given is void: that of one turn, or all of it when `turn` is None (a snapshot follows anew)."""

    turn: int | None
    reason: str


async def pieces(items: AsyncGenerator[Item, None]) -> AsyncGenerator[str | Retracted, None]:
    """The text of a run's items. Closes them."""
    spoke = False
    async with aclosing(items):
        async for item in items:
            for piece in said(item, spoke):
                spoke = spoke or isinstance(piece, str)
                yield piece


def said(item: Item, spoke: bool = True) -> list[str | Retracted]:
    """What an item adds to the text; `spoke` says whether there is any to take back."""
    if isinstance(item, Snapshot):
        void = [Retracted(turn=None, reason="snapshot")] if spoke else []
        return [*void, item.state.text] if item.state.text else [*void]
    event = item.event
    if isinstance(event, TextDelta):
        return [event.text]
    if isinstance(event, TextRetracted):
        return [Retracted(turn=event.turn, reason=event.reason)]
    return []
