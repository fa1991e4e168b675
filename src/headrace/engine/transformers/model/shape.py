"""A grammar that holds an answer: which tokens may come next, by XGrammar."""

from collections.abc import Collection, Sequence

import torch
import xgrammar

from headrace.engine.stepped.lines import Sampling
from headrace.engine.stepped.shapes import grammar_of


class Shapes:
    """Of one model. `pieces` are the bytes of each token, `vocabulary` is how many the model gives a score to."""

    def __init__(self, pieces: Sequence[bytes], *, vocabulary: int, ends: Collection[int]) -> None:
        encoded = [*pieces, *([b""] * (vocabulary - len(pieces)))]
        info = xgrammar.TokenizerInfo(
            encoded[:vocabulary], xgrammar.VocabType.RAW, vocab_size=vocabulary, stop_token_ids=sorted(ends)
        )
        self._vocabulary = vocabulary
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1)

    def shape(self, sampling: Sampling) -> "Shape | None":
        """Raises ValueError for a grammar that cannot be compiled."""
        grammar = grammar_of(sampling)
        if grammar is None:
            return None
        try:
            compiled = self._compiler.compile_grammar(grammar)
        except RuntimeError as exc:
            raise ValueError(f"The grammar cannot be compiled: {exc}") from exc
        return Shape(xgrammar.GrammarMatcher(compiled), self._vocabulary)


class Shape:
    """Of one answer, as far as it has come."""

    def __init__(self, matcher: "xgrammar.GrammarMatcher", vocabulary: int) -> None:
        self._matcher = matcher
        self._allowed = xgrammar.allocate_token_bitmask(1, vocabulary)

    def restrict(self, scores: torch.Tensor) -> None:
        """Leave only what may come next."""
        if self._matcher.is_terminated():
            return
        self._matcher.fill_next_token_bitmask(self._allowed)
        xgrammar.apply_token_bitmask_inplace(scores, self._allowed.squeeze(0))

    def accept(self, token: int) -> None:
        if not self._matcher.is_terminated():
            self._matcher.accept_token(token)
