"""Characters that a server cut in UTF-16 halves: `"\\ud83d"` in one event and `"\\ude00"` in the next."""


class Surrogates:
    """Joins halves, separately for each named text. A half that stays alone becomes U+FFFD."""

    def __init__(self) -> None:
        self._held: dict[str, str] = {}

    def join(self, name: str, text: str) -> str:
        text = self._held.pop(name, "") + text
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._held[name] = text[-1]
            text = text[:-1]
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")

    def end(self, name: str) -> str:
        return "\ufffd" if self._held.pop(name, "") else ""
