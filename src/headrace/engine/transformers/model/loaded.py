"""What both ways of driving a model share: its weights, its tokenizer, and how an answer begins."""

from collections.abc import Collection, Sequence
from itertools import count
from typing import Any

from headrace.engine.stepped.lines import Generate
from headrace.engine.stepped.tokens import prompt_tokens, said_tokens
from headrace.engine.transformers.model.choosing import Chooser
from headrace.engine.transformers.model.generation import TransformersGeneration
from headrace.engine.transformers.model.shape import Shapes
from headrace.engine.transformers.model.tokenizer import TransformersTokenizer


class Loaded:
    """`library` is the library's model. Raises ValueError for a vocabulary that cannot be read."""

    def __init__(self, library: Any, tokenizer: TransformersTokenizer) -> None:
        self.library = library
        self.tokenizer = tokenizer
        self.pieces: Sequence[bytes] = tokenizer.pieces
        self.vocabulary: int = library.config.get_text_config().vocab_size
        self.ends: Collection[int] = tokenizer.ends | _listed(library.generation_config.eos_token_id)
        self._shapes = Shapes(self.pieces, vocabulary=self.vocabulary, ends=self.ends)
        self._numbers = count(1)

    def tokens(self, request: Generate) -> list[int]:
        return prompt_tokens(request, self.tokenizer) + said_tokens(request.continued, self.tokenizer)

    def generation(self, tokens: Sequence[int], request: Generate, *, max_tokens: int) -> TransformersGeneration:
        """Raises ValueError for what cannot be asked of this model."""
        chooser = Chooser(
            request.sampling,
            defaults=self.library.generation_config,
            prompt=tokens,
            vocabulary=self.vocabulary,
            shape=self._shapes.shape(request.sampling),
        )
        return TransformersGeneration(next(self._numbers), chooser, max_tokens=max_tokens, ends=self.ends)


def _listed(ids: int | list[int] | None) -> set[int]:
    if ids is None:
        return set()
    return set(ids) if isinstance(ids, list) else {ids}
