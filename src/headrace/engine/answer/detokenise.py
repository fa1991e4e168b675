"""Token ids as they come in, whole characters out.

A token is a few bytes, and a character may be spread over several tokens or end in the middle of one: an emoji, a
Chinese character, an accent on its own. What comes out never ends inside a character; a token that does is held back
as a whole, so that every place between two pieces lies between two tokens too. Bytes that can be no UTF-8 become
U+FFFD, as everywhere.

Emoji families and letters with combining accents are several characters, and may come one after the other.
"""

import codecs
from collections.abc import Iterable, Mapping, Sequence, Set

_decoder = codecs.getincrementaldecoder("utf-8")
_PATIENCE = 8  # tokens held at most: one character never needs more than four, broken bytes might never come to an end
_BLANK = "▁"  # how SentencePiece writes a space
_BYTE_TOKEN = len("<0x0A>")


class Detokeniser:
    """For one answer. `pieces` has the bytes of each token id; an id beyond it is nothing, as is one without bytes."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces
        self._decoder = _decoder("replace")
        self._held: list[str] = []

    def feed(self, ids: Iterable[int]) -> str:
        """The text that these tokens complete; empty as long as a character is not whole."""
        known, whole = len(self._pieces), ""
        for token in ids:
            piece = self._pieces[token] if 0 <= token < known else b""
            self._held.append(self._decoder.decode(piece))
            unfinished, _ = self._decoder.getstate()
            if not unfinished or len(self._held) >= _PATIENCE:
                whole += "".join(self._held)
                self._held.clear()
        return whole

    def end(self) -> str:
        """What is still held, when no more tokens come. A character that was never completed becomes U+FFFD."""
        held = "".join(self._held) + self._decoder.decode(b"", final=True)
        self._held.clear()
        return held


def pieces_by_id(vocabulary: Mapping[bytes, int], silent: Set[int] = frozenset()) -> list[bytes]:
    """The bytes of each id. Tokens in `silent` (the end of a turn, a beginning) are not for the reader's eyes."""
    pieces = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for piece, token in vocabulary.items():
        if token not in silent:
            pieces[token] = piece
    return pieces


def without_sentencepiece(pieces: Iterable[bytes]) -> list[bytes]:
    """The same for a vocabulary as SentencePiece writes it: `▁` for a space, `<0x0A>` for a byte."""
    return [_byte(piece) or piece.replace(_BLANK.encode(), b" ") for piece in pieces]


def _byte(piece: bytes) -> bytes | None:
    if len(piece) != _BYTE_TOKEN or not (piece.startswith(b"<0x") and piece.endswith(b">")):
        return None
    try:
        return bytes([int(piece[3:5], 16)])
    except ValueError:
        return None
