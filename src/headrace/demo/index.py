"""Which passages answer a question, and whether any does.

The score of a passage is its cosine plus a little BM25. Whether the best one is good enough is a different question:
near misses have high cosines too, so `relevance` also asks how much of the question's words are there, and distrusts
a name that no document has. The constants were set on `tests/demo/calibration.jsonl` and the questions that are not
held out; `python -m headrace.demo.evaluate` says what they are worth.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from headrace.demo.documents import Lang, Passage, language
from headrace.demo.embedder import Embedder, Vectors
from headrace.demo.terms import Bm25, names, terms
from headrace.demo.vectors import vectors_of

BM25_WEIGHT = 0.003
COVERED_WEIGHT = 0.1
UNKNOWN_NAME = 0.1
RELEVANT: dict[Lang, float] = {"en": 0.87, "zh": 0.88}


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    passage: Passage
    score: float


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """`hits` are best first. `relevant` says that the documents seem to answer the question at all."""

    hits: tuple[Hit, ...]
    relevance: float
    relevant: bool

    @property
    def margin(self) -> float:
        """How far the best is ahead of the second."""
        return self.hits[0].score - self.hits[1].score if len(self.hits) > 1 else 1.0


class _Shelf:
    """The passages of one language."""

    def __init__(self, passages: Sequence[Passage], vectors: Vectors) -> None:
        self.passages = passages
        self.vectors = vectors
        self.words = Bm25([f"{p.title} {p.in_context}" for p in passages])


class Index:
    """Brute force: a few hundred passages take microseconds. Blocks for the question's embedding (about 20 ms)."""

    def __init__(self, passages: Sequence[Passage], vectors: Vectors, embedder: Embedder) -> None:
        self._embedder = embedder
        self._shelves: dict[Lang, _Shelf] = {}
        for lang in RELEVANT:
            rows = [i for i, passage in enumerate(passages) if passage.lang == lang]
            self._shelves[lang] = _Shelf([passages[i] for i in rows], vectors[rows])

    def search(self, question: str, *, limit: int = 4) -> Found:
        lang = language(question)
        shelf = self._shelves[lang]
        cosines = shelf.vectors @ self._embedder.question(question)
        scores = cosines + BM25_WEIGHT * np.array(shelf.words.scores(question), dtype=np.float32)
        best = [int(i) for i in np.argsort(-scores, kind="stable")[:limit]]
        relevance = _relevance(question, shelf.words, float(cosines[best[0]]), best[:1])
        hits = tuple(Hit(passage=shelf.passages[i], score=round(float(scores[i]), 4)) for i in best)
        return Found(hits=hits, relevance=round(relevance, 4), relevant=relevance >= RELEVANT[lang])


def _relevance(question: str, words: Bm25, cosine: float, best: Sequence[int]) -> float:
    """A question of stop words only ("what is it?") is judged by its cosine alone."""
    if not terms(question):
        return cosine
    unknown = any(name not in words for name in names(question))
    return cosine + COVERED_WEIGHT * words.covered(question, best) - (UNKNOWN_NAME if unknown else 0.0)


def open_index(
    passages: Sequence[Passage],
    embedder: Embedder,
    cache: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Index:
    """The index of these passages. Those whose vectors are not in the cache yet take seconds; `progress` is told."""
    return Index(passages, vectors_of([p.in_context for p in passages], embedder, cache, progress), embedder)
