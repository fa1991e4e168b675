"""An embedder for tests: words hashed into a vector. It finds what shares words, and counts what it was asked."""

import zlib
from collections.abc import Sequence

import numpy as np

from headrace.demo.embedder import Vectors
from headrace.demo.terms import terms


class BagOfWords:
    version = "bag-1"

    def __init__(self) -> None:
        self.embedded = 0

    def passages(self, texts: Sequence[str]) -> Vectors:
        self.embedded += len(texts)
        return np.array([_vector(text) for text in texts], dtype=np.float32)

    def question(self, text: str) -> Vectors:
        return _vector(text)


def _vector(text: str) -> Vectors:
    vector = np.zeros(512, dtype=np.float32)
    vector[0] = 0.01
    for term in terms(text):
        vector[zlib.crc32(term.encode()) % 512] += 1.0
    scaled: Vectors = vector / np.linalg.norm(vector)
    return scaled
