"""How much a model server holds, as it says itself."""

from collections.abc import Iterable

import msgspec


class Capacity(msgspec.Struct, frozen=True):
    """`context_tokens` are those of a prompt and its answer together, `slots` how many answers it gives at once. None
    for what it did not say."""

    context_tokens: int | None = None
    slots: int | None = None


def least(contexts: Iterable[int | None]) -> Capacity | None:
    """Where one of several answers and nobody knows which: the smallest of the contexts that are known. None if none
    is, which may change."""
    told = [context for context in contexts if context]
    return Capacity(context_tokens=min(told)) if told else None
