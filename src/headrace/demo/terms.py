"""Words and how much they say: BM25 over short passages, in English and Chinese.

Embeddings know that "graphics card" means GPU but blur names and numbers; words do the opposite. Together they rank
better than either (see `python -m headrace.demo.evaluate`).
"""

import math
import re
from collections import Counter
from collections.abc import Sequence

_K1 = 1.2
_B = 0.5  # sentences differ little in length

_STOP = """
    a about am an and any are as at be been by can could did do does for from had has have how i if in into is it
    its me my no not of off on or our out please shall should so some tell than that the their them then there these
    they this to up us want was we were what when where which who whom whose why will with would you your
    """
_EMPTY = frozenset(_STOP.split())
_ENDINGS = ("ing", "ed", "es", "s", "ly", "e")
_WORD = re.compile(r"[a-z0-9_]+|[\u4e00-\u9fff]+")


def terms(text: str) -> list[str]:
    """Stemmed words without the empty ones; Chinese as pairs of characters."""
    found: list[str] = []
    for word in _WORD.findall(text.lower()):
        if word[0] >= "\u4e00":
            found += [word[i : i + 2] for i in range(len(word) - 1)] or [word]
        elif word not in _EMPTY:
            found.append(_stem(word))
    return found


def names(text: str) -> set[str]:
    """The stems of capitalised words, the first one of the text excepted."""
    words: list[str] = re.findall(r"[A-Za-z][A-Za-z0-9]*", text)
    return {_stem(word.lower()) for word in words[1:] if word[0].isupper() and word != "I"}


def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


class Bm25:
    """Scores every passage for a question."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._counts = [Counter(terms(text)) for text in texts]
        self._lengths = [count.total() for count in self._counts]
        self._average = sum(self._lengths) / max(1, len(texts))
        seen = Counter(term for count in self._counts for term in count)
        total = len(texts)
        self._weights = {term: math.log(1 + (total - n + 0.5) / (n + 0.5)) for term, n in seen.items()}
        self._rarest = max(self._weights.values(), default=1.0)

    def __contains__(self, term: str) -> bool:
        return term in self._weights

    def scores(self, question: str) -> list[float]:
        wanted = set(terms(question))
        return [self._score(wanted, i) for i in range(len(self._counts))]

    def covered(self, question: str, best: Sequence[int]) -> float:
        """How much of what the question says stands in these passages: 0 to 1, rare words weighing more."""
        wanted = set(terms(question))
        there = {term for i in best for term in self._counts[i]}
        total = sum(self._weights.get(term, self._rarest) for term in wanted)
        return sum(self._weights[term] for term in wanted & there) / total if total else 0.0

    def _score(self, wanted: set[str], i: int) -> float:
        count = self._counts[i]
        norm = _K1 * (1 - _B + _B * self._lengths[i] / self._average)
        return sum(self._weights[t] * count[t] * (_K1 + 1) / (count[t] + norm) for t in wanted & count.keys())
