"""Reasoning that a server leaves inside the text, between tags at the start of an answer.

Works on what has been held back, not on single pieces: a tag may be cut anywhere. A tag that stands later in the
answer is text, because then the answer speaks about it. The line breaks right after a tag belong to the tag.
"""

from typing import Literal

from headrace.engine.answer.stops import overlap
from headrace.engine.port import Chunk, Text, Thinking

_TAGS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",  # Gemini's compatible endpoint
    "[THINK]": "[/THINK]",  # Mistral
}

_Place = Literal["start", "after_open", "thinking", "after_close", "text"]


class ThinkTags:
    """Pieces of text in, chunks out. `settled` is True once all that follows is plain text."""

    def __init__(self) -> None:
        self._place: _Place = "start"
        self._close = ""
        self._held = ""

    @property
    def settled(self) -> bool:
        return self._place == "text"

    def feed(self, text: str) -> list[Chunk]:
        self._held += text
        chunks: list[Chunk] = []
        while self._advance(chunks):
            pass
        return chunks

    def end(self) -> list[Chunk]:
        """What is still held, when no more text comes."""
        held, self._held = self._held, ""
        if not held:
            return []
        return [Thinking(held) if self._place == "thinking" else Text(held)]

    def _advance(self, chunks: list[Chunk]) -> bool:
        """One step; False when more text is needed."""
        match self._place:
            case "start":
                return self._look_for_open()
            case "after_open" | "after_close":
                return self._skip_line_breaks()
            case "thinking":
                return self._look_for_close(chunks)
            case "text":
                if self._held:
                    chunks.append(Text(self._held))
                    self._held = ""
                return False

    def _look_for_open(self) -> bool:
        start = self._held.lstrip()
        for tag, close in _TAGS.items():
            if start.startswith(tag):
                self._held = start[len(tag) :]
                self._place, self._close = "after_open", close
                return True
        if any(tag.startswith(start) for tag in _TAGS):
            return False
        self._place = "text"
        return True

    def _skip_line_breaks(self) -> bool:
        self._held = self._held.lstrip("\r\n")
        if self._held:
            self._place = "thinking" if self._place == "after_open" else "text"
        return bool(self._held)

    def _look_for_close(self, chunks: list[Chunk]) -> bool:
        at = self._held.find(self._close)
        closed = at >= 0
        end = at if closed else len(self._held) - overlap(self._held, self._close)
        if end:
            chunks.append(Thinking(self._held[:end]))
        self._held = self._held[end + len(self._close) if closed else end :]
        if closed:
            self._place = "after_close"
        return closed
