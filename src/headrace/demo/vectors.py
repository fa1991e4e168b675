"""The vectors of texts, kept between starts: only what is new is embedded, 20 ms each."""

import contextlib
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from headrace.demo.embedder import Embedder, Vectors

_BATCH = 16
_OTHERS_KEPT = 4096
"""Vectors of other documents than these: 6 MB."""

Known = Mapping[bytes, Vectors]
"""One vector for each text, by its key."""


class _Kept(msgspec.Struct):
    """The file: `vectors` are 32-bit floats, as many for each key."""

    keys: list[bytes]
    vectors: bytes


def vectors_of(
    texts: Sequence[str],
    embedder: Embedder,
    cache: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Vectors:
    """One row for each text: from the cache, or made (`progress` is told) and put there."""
    path = cache / f"{embedder.version}.vectors"
    keys = [_key(text) for text in texts]
    before = _read(path)
    missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in before}
    made = _embedded(missing, embedder, lambda done: progress(len(texts) - len(missing) + done, len(texts)))
    known = {**before, **made}
    if made:
        others = [key for key in before if key not in set(keys)][:_OTHERS_KEPT]
        _save(path, {key: known[key] for key in dict.fromkeys([*keys, *others])})
    return np.stack([known[key] for key in keys])


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _embedded(texts: Mapping[bytes, str], embedder: Embedder, progress: Callable[[int], None]) -> Known:
    made: dict[bytes, Vectors] = {}
    keys = list(texts)
    for start in range(0, len(keys), _BATCH):
        progress(start)
        batch = keys[start : start + _BATCH]
        made |= zip(batch, embedder.passages([texts[key] for key in batch]), strict=True)
    progress(len(keys))
    return made


def _read(path: Path) -> Known:
    """What is there. Nothing, where it cannot be read: it is only a cache."""
    try:
        kept = msgspec.msgpack.decode(path.read_bytes(), type=_Kept)
        vectors = np.frombuffer(kept.vectors, dtype=np.float32).reshape(len(kept.keys), -1)
    except (OSError, ValueError, msgspec.DecodeError):
        return {}
    return dict(zip(kept.keys, vectors, strict=True))


def _save(path: Path, known: Known) -> None:
    """A cache that cannot be written (full, read-only) costs the next start some seconds, nothing else."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    kept = _Kept(keys=list(known), vectors=np.stack(list(known.values())).tobytes())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(msgspec.msgpack.encode(kept))
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
