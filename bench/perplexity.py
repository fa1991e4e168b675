"""How well a model foretells a text that nobody here wrote, and where two models agree.

The text is the first chapter of George Eliot's *Middlemarch* (1871, public domain), `middlemarch.txt`. It is cut into
windows, which a model reads without what was before; every token of a window but the first is foretold from those
before it. How a library is asked is not known here.
"""

import math
from collections.abc import Sequence

import msgspec

from bench.rivals import ROOT

TEXT = ROOT / "bench" / "middlemarch.txt"
Window = list[int]


class Foretold(msgspec.Struct, frozen=True, kw_only=True):
    """For every token that was foretold: its natural log probability, and the token that was likeliest in its place."""

    logprobs: list[float]
    likeliest: list[int]

    @property
    def perplexity(self) -> float:
        return perplexity(self.logprobs)

    def agreement(self, other: "Foretold") -> float:
        """The share of places in which the same token was likeliest."""
        pairs = list(zip(self.likeliest, other.likeliest, strict=True))
        return sum(one == two for one, two in pairs) / len(pairs)


def perplexity(logprobs: Sequence[float]) -> float:
    return math.exp(-sum(logprobs) / len(logprobs))


def windows(tokens: Sequence[int], *, size: int, count: int) -> list[Window]:
    """The first `count` whole windows, fewer if the text has no more. Raises ValueError if it has none."""
    whole = [list(tokens[at : at + size]) for at in range(0, len(tokens) - size + 1, size)]
    if not whole:
        raise ValueError(f"The text has {len(tokens)} tokens, a window needs {size}.")
    return whole[:count]


def same_until(one: Sequence[object], other: Sequence[object]) -> int:
    """How many pieces come before the first difference."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (mine, theirs) in pairs if mine != theirs), min(len(one), len(other)))
