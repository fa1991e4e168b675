"""One answer in transformers: the tokens that it was given, and why it ended."""

from collections.abc import Collection

import torch

from headrace.engine.transformers.model.choosing import Chooser


class TransformersGeneration:
    """`ends` are the tokens that end a turn. `number` is the answer's among all of the process.

    `cached_tokens` of the prompt were in the cache that answers share: None before its turn has come, and where they
    share none.
    """

    def __init__(self, number: int, chooser: Chooser, *, max_tokens: int, ends: Collection[int]) -> None:
        self.number = number
        self.max_tokens = max_tokens
        self.said: list[int] = []
        self.over: str | None = None
        self.cached_tokens: int | None = None
        self._chooser = chooser
        self._ends = ends
        self._read = 0
        self._cancelled = False

    @property
    def idle(self) -> bool:
        """Nothing is to be computed for it any more."""
        return self._cancelled or self.over is not None

    def choose(self, scores: torch.Tensor) -> int | None:
        """The next token; None where the answer is over because nothing can follow."""
        token = self._chooser(scores)
        if token is None or token in self._ends:
            self.over = "stop"
            return token
        self.said.append(token)
        if len(self.said) >= self.max_tokens:
            self.over = "length"
        return token

    def read(self) -> tuple[list[int], str | None]:
        fresh = self.said[self._read :]
        self._read = len(self.said)
        return fresh, self.over

    def cancel(self) -> None:
        self._cancelled = True
