"""The thinking behind a turn's calls, kept until the calls are answered.

Some servers sign what a model has thought and want it back, to the letter, with the results of the calls that came of
it. A run's records hold only what can be read of it, so it is kept here, in this process and within a bound. Where it
is gone (a restart, another instance) the turn goes on without thinking.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from headrace.engine.port import Chunk, Text, ToolCallPart
from headrace.messages import Message, ToolRequest

_KEPT = 256  # turns; a thought is some tens of kilobytes at most

Block = dict[str, Any]
"""A piece of what a server wants back, in its own form."""

Remember = Callable[[Message, tuple[Block, ...]], None]
"""Called at the end of an answer that called tools."""

Behind = Callable[[Message], Sequence[Block]]
"""What is known to be behind a turn of the conversation; empty if nothing is."""


class Turn:
    """A turn as the conversation will show it, from the chunks of its answer."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._names: dict[int, str] = {}
        self._arguments: dict[int, str] = {}

    def add(self, chunks: Iterable[Chunk]) -> None:
        for chunk in chunks:
            if isinstance(chunk, Text):
                self._text.append(chunk.text)
            elif isinstance(chunk, ToolCallPart):
                self._names.setdefault(chunk.index, chunk.name or "")
                self._arguments[chunk.index] = self._arguments.get(chunk.index, "") + chunk.arguments

    def said(self) -> Message:
        calls = tuple(
            ToolRequest(call_id="", name=self._names[index], arguments=self._arguments[index])
            for index in sorted(self._names)
        )
        return Message(role="assistant", content="".join(self._text), tool_calls=calls)


class Thoughts:
    """What was thought, found again by the session and by what was said and called."""

    def __init__(self, *, limit: int = _KEPT) -> None:
        self._limit = limit
        self._kept: OrderedDict[tuple[str | None, str, str], tuple[Block, ...]] = OrderedDict()

    def keep(self, session: str | None, said: Message, blocks: tuple[Block, ...]) -> None:
        key = _key(session, said)
        self._kept[key] = blocks
        self._kept.move_to_end(key)
        if len(self._kept) > self._limit:
            self._kept.popitem(last=False)

    def behind(self, session: str | None, said: Message) -> tuple[Block, ...]:
        """Empty if nothing is known."""
        return self._kept.get(_key(session, said), ())


def _key(session: str | None, said: Message) -> tuple[str | None, str, str]:
    """Call ids are ours in the conversation and the server's in its answer, so they don't count."""
    calls = [(call.name, _canonical(call.arguments)) for call in said.tool_calls]
    return session, said.content, msgspec.json.encode(calls).decode()


def _canonical(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments or "{}"), sort_keys=True)
    except ValueError:
        return arguments
