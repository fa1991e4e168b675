"""What several engines have in common. Pure."""

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.engine.port import Capabilities


def in_common(capabilities: Sequence[Capabilities]) -> Capabilities:
    """What each of them can do, of sizes the smallest that is known."""
    names = (field.name for field in msgspec.structs.fields(Capabilities))
    return Capabilities(**{name: _least([getattr(able, name) for able in capabilities]) for name in names})


def _least(values: Sequence[Any]) -> Any:
    if all(isinstance(value, bool) for value in values):
        return all(values)
    if all(isinstance(value, frozenset) for value in values):
        return frozenset.intersection(*values)
    return min((value for value in values if value is not None), default=None)
