"""The tokenizer of a model: text to ids, conversations to text, and the bytes of each id."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from headrace.engine.answer.detokenise import pieces_by_id, without_sentencepiece
from headrace.engine.stepped.tokens import fitting

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))


class TransformersTokenizer:
    """`library` is the library's own."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def encode(self, text: str, *, special: bool) -> list[int]:
        try:
            ids: list[int] = self._library(text, add_special_tokens=special)["input_ids"]
        except (ValueError, TypeError) as exc:
            raise ValueError(f"The text cannot be made tokens: {exc}") from exc
        return ids

    def resume(self, text: str) -> list[int]:
        """Behind a line break, which is taken away again, where a blank would be added to the beginning of a text."""
        if self._adds_blank:
            before, all_ids = self.encode("\n", special=False), self.encode("\n" + text, special=False)
            if all_ids[: len(before)] == before:
                return all_ids[len(before) :]
        return self.encode(text, special=False)

    def write(self, history: Sequence[dict[str, Any]]) -> str:
        """The template is the model's: whatever it raises is about these messages."""
        try:
            return str(self._library.apply_chat_template(list(history), tokenize=False, add_generation_prompt=True))
        except Exception as exc:
            raise ValueError(f"The model's chat template cannot write these messages: {exc}") from exc

    @cached_property
    def pieces(self) -> Sequence[bytes]:
        """The bytes of each token id; of those that are not for the reader's eyes, none."""
        vocabulary: dict[str, int] = self._library.get_vocab()
        return fitting(self._candidates(vocabulary), self)

    @cached_property
    def _adds_blank(self) -> bool:
        return b"".join(self.pieces[token] for token in self.encode("a", special=False)).startswith(b" ")

    @property
    def ends(self) -> set[int]:
        end = self._library.eos_token_id
        return set() if end is None else {end}

    def _candidates(self, vocabulary: dict[str, int]) -> Iterator[Sequence[bytes]]:
        """The two ways in which vocabularies write bytes as text."""
        plain = pieces_by_id({piece.encode(): token for piece, token in vocabulary.items()})
        yield self._with_added([_from_characters(piece) for piece in plain])
        yield self._with_added(without_sentencepiece(plain))

    def _with_added(self, pieces: list[bytes]) -> list[bytes]:
        """Tokens that were added to a vocabulary stand for themselves, or are a sign to the model."""
        for token, added in self._library.added_tokens_decoder.items():
            if token < len(pieces):
                pieces[token] = b"" if added.special else added.content.encode()
        return pieces


def _from_characters(piece: bytes) -> bytes:
    """GPT-2's alphabet has a printable character for every byte."""
    text = piece.decode()
    try:
        return bytes(_BYTES[character] for character in text)
    except KeyError:
        return piece


def _alphabet() -> dict[str, int]:
    others = (byte for byte in range(256) if byte not in _PRINTABLE)
    return {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + at): byte for at, byte in enumerate(others)}


_BYTES = _alphabet()
