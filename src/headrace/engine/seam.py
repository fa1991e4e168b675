"""Where an answer goes on that was cut behind blanks.

Many chat templates trim messages, so the model would not see them and say them again. They are therefore not sent, and
taken off what follows.
"""

from headrace.engine.port import Chunk, Text


def split_blanks(said: str) -> tuple[str, str]:
    """The text and the blanks at its end."""
    text = said.rstrip()
    return text, said[len(text) :]


class Seam:
    """Pieces of the rest in, chunks out, less the blanks. `settled` is True once all that follows is plain text.

    A model that is not greedy may say something else than before; then only its own spaces are dropped.
    """

    def __init__(self, blanks: str) -> None:
        self._blanks = blanks

    @property
    def settled(self) -> bool:
        return not self._blanks

    def feed(self, text: str) -> list[Chunk]:
        while text and self._blanks:
            if text[0] == self._blanks[0]:
                text, self._blanks = text[1:], self._blanks[1:]
            else:
                text, self._blanks = text.lstrip(" "), ""
        return [Text(text)] if text else []

    def end(self) -> list[Chunk]:
        """Nothing is ever held."""
        return []
