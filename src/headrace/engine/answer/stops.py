"""Stop strings, found wherever a text is cut. An answer ends before the first one and shows none of it.

Most servers do this themselves, and then nothing is ever found here. Some look at single tokens only, take no more
than four stops, or send the beginning of one before they know. What may become a stop is held back, and not a
character more.
"""


class StopMatcher:
    """Pieces of text in, the text that may be shown out. `hit` is True once a stop was found."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.hit = False
        self._stops = stops
        self._held = ""

    def feed(self, text: str) -> str:
        if self.hit:
            return ""
        text = self._held + text
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.hit = True
            self._held = ""
            return text[: min(found)]
        shown = len(text) - max(overlap(text, stop) for stop in self._stops)
        self._held = text[shown:]
        return text[:shown]

    def end(self) -> str:
        """What is still held, when no more text comes: it was no stop after all."""
        held, self._held = self._held, ""
        return held


def overlap(text: str, whole: str) -> int:
    """How many characters at the end of `text` may be the beginning of `whole`."""
    return next((n for n in range(min(len(text), len(whole) - 1), 0, -1) if whole.startswith(text[-n:])), 0)
