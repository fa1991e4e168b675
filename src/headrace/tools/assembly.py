"""Fragments of tool calls, put together. Pure: parts in, steps out.

A call starts when its name is known and is whole once: when the next index has begun and its arguments are one complete
JSON object (a server may interleave: then it is not yet), at the latest when the stream ends. What still comes for a
call that is whole is dropped, so nothing ever follows a call's end.
"""

import secrets
from collections.abc import Callable

import msgspec

from headrace.tools.arguments import is_whole


def new_call_id() -> str:
    """A call's id, unique in the world: a tool uses it as the idempotency key of what it writes. Engines' own ids do
    not travel further: some servers count from 0 in every answer."""
    return f"call_{secrets.token_hex(12)}"


class CallStarted(msgspec.Struct, frozen=True):
    index: int
    call_id: str
    name: str


class CallFragment(msgspec.Struct, frozen=True):
    call_id: str
    text: str


class CallWhole(msgspec.Struct, frozen=True):
    """`arguments` is the raw text, which need not be JSON at all. `name` is empty if none ever came."""

    index: int
    call_id: str
    name: str
    arguments: str


Step = CallStarted | CallFragment | CallWhole


class _Open:
    def __init__(self, call_id: str) -> None:
        self.call_id = call_id
        self.name = ""
        self.pieces: list[str] = []
        self.whole = False


class Assembly:
    """The calls of one turn, each under an id of ours."""

    def __init__(self, new_id: Callable[[], str] = new_call_id) -> None:
        self._new_id = new_id
        self._calls: dict[int, _Open] = {}

    def add(self, index: int, *, name: str | None, arguments: str) -> list[Step]:
        """What a fragment (`engine.port.ToolCallPart`) means, in order."""
        steps: list[Step] = []
        call = self._calls.get(index)
        if call is None:
            steps += [self._close(at, open_) for at, open_ in self._complete()]
            call = self._calls[index] = _Open(self._new_id())
        if call.whole:
            return steps
        if name and not call.name:
            call.name = name
            steps.append(CallStarted(index, call.call_id, call.name))
        if arguments:
            call.pieces.append(arguments)
            steps.append(CallFragment(call.call_id, arguments))
        return steps

    def finish(self) -> list[Step]:
        """The calls still open, in call order: the stream has ended, so they are whole."""
        return [self._close(index, call) for index, call in sorted(self._calls.items()) if not call.whole]

    def open_calls(self) -> list[str]:
        """The ids of the calls that have started and are not whole."""
        return [call.call_id for _, call in sorted(self._calls.items()) if call.name and not call.whole]

    def _complete(self) -> list[tuple[int, _Open]]:
        return [
            (index, call)
            for index, call in sorted(self._calls.items())
            if not call.whole and call.name and is_whole("".join(call.pieces))
        ]

    def _close(self, index: int, call: _Open) -> CallWhole:
        call.whole = True
        return CallWhole(index, call.call_id, call.name, "".join(call.pieces))
