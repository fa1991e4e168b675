"""How a GGUF model makes vectors of texts, and which models do nothing else.

Vectors are made by a second server in the same process. It maps the same weights and shares neither slots nor cached
prompts nor batches with the one that generates: what is embedded costs an answer nothing but processor time.

How the vectors of a text's tokens become one is what the model's header says. A model that was made to generate says
nothing; there the last token's stands for the text, which has seen all the others. Only that can be read in small
parts: for the other kinds a text must fit into one batch, whose memory grows with the vocabulary.
"""

from collections.abc import Iterable, Iterator

from headrace.engine.gguf import Header
from headrace.engine.llamacpp.parameters import Pooling
from headrace.errors import ConfigError

_DECLARED: dict[int, Pooling] = {1: "mean", 2: "cls", 3: "last"}
_RANKS = 4
_MOST_TEXTS, _MOST_CHARACTERS = 16, 2048


def generates(header: Header) -> bool:
    """False for encoders such as BERT: each of their tokens sees those after it, so none can be said next."""
    return bool(header.values.get(f"{header.architecture}.attention.causal", True))


def pooling_of(header: Header) -> Pooling:
    """Raises ConfigError for a model that compares texts instead."""
    declared = header.number("pooling_type", 0)
    if declared == _RANKS:
        raise ConfigError("This model ranks texts and makes no embeddings.", hint="Take a model made for embeddings.")
    return _DECLARED.get(declared, "last" if generates(header) else "mean")


def longest_text(header: Header, context: int) -> int:
    """Tokens. An encoder knows no places beyond those that it was trained with, and llama.cpp aborts there."""
    return context if generates(header) else min(context, header.number("context_length", context))


def in_parts(texts: Iterable[str]) -> Iterator[list[str]]:
    """As much as one request asks for: between two of them others get their turn, and who has left asks no more."""
    part: list[str] = []
    characters = 0
    for text in texts:
        if part and (len(part) == _MOST_TEXTS or characters + len(text) > _MOST_CHARACTERS):
            yield part
            part, characters = [], 0
        part.append(text)
        characters += len(text)
    if part:
        yield part
