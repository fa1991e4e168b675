"""Tool calls from the fragments that servers send, each in its own way.

By the book a fragment has the call's index, and the first one its id and name. Seen in the wild: no index; index 0
for all; the name in every fragment; the id inside `function`; no id at all; a fragment with neither id nor name.
The rules, in this order:

1. A known id is that call's fragment, whatever the index says.
2. A name, or a new id, begins a call, unless it only repeats what the call at this place already has.
3. Anything else continues the call at its index, else the latest one. It never begins a call.
"""

import json
from collections.abc import Callable
from typing import Any

from headrace.engine.port import ToolCallPart
from headrace.errors import EngineProtocol


class _Call:
    __slots__ = ("arguments", "call_id", "index", "name")

    def __init__(self, index: int, call_id: str | None) -> None:
        self.index = index
        self.call_id = call_id
        self.name: str | None = None
        self.arguments: list[str] = []

    def complete(self) -> bool:
        """True if the arguments so far are a whole JSON value, so that no fragment can belong to them."""
        try:
            json.loads("".join(self.arguments))
        except ValueError:
            return False
        return True


class ToolFragments:
    """Fragments in, `ToolCallPart`s out. `new_id` names the calls of servers that don't."""

    def __init__(self, *, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._calls: list[_Call] = []
        self._at: dict[int, _Call] = {}

    @property
    def called(self) -> bool:
        return bool(self._calls)

    def feed(self, entry: dict[str, Any]) -> ToolCallPart | None:
        """Raises EngineProtocol for arguments that belong to no call."""
        function = _object(entry.get("function"))
        index = entry.get("index")
        call_id = _text(entry.get("id")) or _text(function.get("id"))
        name = _text(function.get("name"))
        arguments = _arguments(function.get("arguments"))
        if not (call_id or name or arguments):
            return None
        call = self._call_for(index if isinstance(index, int) else None, call_id, name, arguments)
        return self._part(call, name, arguments)

    def end(self) -> None:
        """Raises EngineProtocol when a call never got its name."""
        nameless = next((call for call in self._calls if call.name is None), None)
        if nameless is not None:
            raise EngineProtocol(f"The engine began tool call {nameless.call_id} and never named the tool.")

    def _call_for(self, index: int | None, call_id: str, name: str, arguments: str) -> _Call:
        known = next((call for call in self._calls if call_id and call.call_id == call_id), None)
        if known is not None:
            return known
        here = self._at.get(index) if index is not None else (self._calls[-1] if self._calls else None)
        if call_id or name:
            begins = here is None or _begins(here, call_id, name, arguments)
            return self._begin(index, call_id) if begins or here is None else here
        if here is None and self._calls:
            return self._calls[-1]
        if here is None:
            raise EngineProtocol("The engine sent arguments of a tool call that it never began.")
        return here

    def _begin(self, index: int | None, call_id: str) -> _Call:
        call = _Call(len(self._calls), call_id or None)
        self._calls.append(call)
        if index is not None:
            self._at[index] = call
        return call

    def _part(self, call: _Call, name: str, arguments: str) -> ToolCallPart | None:
        if arguments:
            call.arguments.append(arguments)
        if call.name is not None:
            return ToolCallPart(index=call.index, arguments=arguments) if arguments else None
        if not name:
            return None  # held until the name is known
        call.name = name
        call.call_id = call.call_id or self._new_id()
        return ToolCallPart(index=call.index, call_id=call.call_id, name=name, arguments="".join(call.arguments))


def _begins(here: _Call, call_id: str, name: str, arguments: str) -> bool:
    """True if a fragment with an id or a name is a new call, and not one more of `here`."""
    if here.name is None:
        return bool(call_id)  # it waits for its name; a new id is another call
    if name and name != here.name:
        return True
    if call_id and name:
        return True
    # Only the name or only the id came again: a fragment of the same call, unless that call is already whole.
    return bool(arguments) and here.complete()


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _arguments(value: object) -> str:
    """Some servers send the object itself instead of its text."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
