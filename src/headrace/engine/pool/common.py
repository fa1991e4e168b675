"""What several engines have in common. Pure."""

from functools import lru_cache
from typing import Any

from headrace.engine.port import Capabilities


@lru_cache(maxsize=64)  # it is asked for with every request, and changes when a replica comes or goes
def in_common(capabilities: tuple[Capabilities, ...]) -> Capabilities:
    """What each of them can do, of sizes the smallest that is known."""
    names = Capabilities.__struct_fields__
    return Capabilities(**{name: _least([getattr(able, name) for able in capabilities]) for name in names})


def _least(values: list[Any]) -> Any:
    if all(isinstance(value, bool) for value in values):
        return all(values)
    if all(isinstance(value, frozenset) for value in values):
        return frozenset.intersection(*values)
    return min((value for value in values if value is not None), default=None)
