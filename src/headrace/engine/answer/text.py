"""The text of one answer on its way out, whatever the server: halves of characters are joined, thinking is told from
text, what was said already is taken off, stop strings end it, and log probabilities go with the piece they belong to.
"""

from headrace.engine.answer.halves import Halves
from headrace.engine.answer.stops import StopMatcher
from headrace.engine.answer.think_tags import ThinkTags
from headrace.engine.port import Chunk, Text, Thinking, TokenLogprob
from headrace.engine.seam import Seam


class AnswerText:
    """Pieces in, whole chunks appended to `out`. `stopped` is True once a stop string was found: no more comes.

    `start` is what looks at the first text, None for nothing. `halves` is set by who has met half a character.
    """

    def __init__(self, *, start: ThinkTags | Seam | None, stops: tuple[str, ...] = ()) -> None:
        self.halves: Halves | None = None
        self.stopped = False
        self._start = start
        self._stops = StopMatcher(stops) if stops else None
        self._logprobs: list[TokenLogprob] = []

    def text(self, piece: str, out: list[Chunk]) -> None:
        if self.halves is not None:
            piece = self.halves.join("text", piece)
        if self._start is not None:
            for chunk in self._start.feed(piece):
                self._show(chunk, out)
            if self._start.settled:
                self._start = None
        elif self._stops is not None:
            self._show(Text(piece), out)
        elif piece:
            out.append(Text(piece))

    def thinking(self, piece: str, out: list[Chunk]) -> None:
        if self.halves is not None:
            piece = self.halves.join("thinking", piece)
        if piece:
            out.append(Thinking(piece))

    def logprobs(self, tokens: list[TokenLogprob], out: list[Chunk]) -> None:
        """`tokens` came with what was just appended to `out`. Those of a text that is still held wait for it; those of
        thinking are of no text."""
        self._logprobs += tokens
        said = next((at for at in range(len(out) - 1, -1, -1) if isinstance(out[at], Text)), None)
        if said is not None:
            self._attach(said, out)
        elif out:
            self._logprobs.clear()

    def held(self, out: list[Chunk]) -> None:
        """Hand out what was held back: something else than text comes."""
        start, self._start = self._start, None
        for chunk in start.end() if start is not None else ():
            self._show(chunk, out)
        if self._stops is not None and (rest := self._stops.end()):
            out.append(Text(rest))

    def end(self, out: list[Chunk]) -> None:
        """No more comes."""
        if self.halves is not None:
            self.thinking(self.halves.end("thinking"), out)
            if lost := self.halves.end("text"):
                self.text(lost, out)
        before = len(out)
        self.held(out)
        if self._logprobs and len(out) > before and isinstance(out[-1], Text):
            self._attach(len(out) - 1, out)

    def _attach(self, at: int, out: list[Chunk]) -> None:
        chunk = out[at]
        assert isinstance(chunk, Text)
        out[at] = Text(chunk.text, (*chunk.logprobs, *self._logprobs))
        self._logprobs.clear()

    def _show(self, chunk: Chunk, out: list[Chunk]) -> None:
        if self._stops is not None and isinstance(chunk, Text):
            if shown := self._stops.feed(chunk.text):
                out.append(Text(shown))
            self.stopped = self._stops.hit
        elif not self.stopped:
            out.append(chunk)
