"""The text of one turn as it grows, and in how many tokens it was said."""

from headrace.agent.continuation import Said

GATHER = 256
"""So many pieces are joined: a str each would be 60 bytes per token of a live run, in an io.StringIO too."""


class Spoken:
    """Append to `pieces`, and `gather` when there are `GATHER` of them. `thought` is for the turn's owner to set.

    `before` are the tokens that were said before the request in progress.
    """

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.thought = False
        self.before = 0
        self._text: list[str] = []
        self._tokens = 0

    @property
    def text(self) -> str:
        return "".join((*self._text, *self.pieces))

    @property
    def said(self) -> Said:
        """Each piece is one token or more."""
        return Said(text=self.text, tokens=self._tokens + len(self.pieces))

    def gather(self) -> None:
        self._text.append("".join(self.pieces))
        self._tokens += len(self.pieces)
        self.pieces.clear()

    def take_up(self, text: str, *, tokens: int, thought: bool) -> None:
        """What another worker has recorded of the turn."""
        self._text, self._tokens, self.thought = [text], tokens, thought

    def clear(self) -> None:
        self.pieces.clear()
        self._text.clear()
        self._tokens = self.before = 0
        self.thought = False
