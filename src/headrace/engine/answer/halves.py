"""Characters that a server cut in two: UTF-16 halves, `"\\ud83d"` in one event and `"\\ude00"` in the next, and UTF-8
bytes that stand in one event and go on in the next (the decoder hands them on as lone surrogates, PEP 383)."""

import codecs
import re

_ALONE = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # no byte that was escaped
_FIRST_HALF = re.compile("[\ud800-\udbff]\\Z")


class Halves:
    """Joins halves, separately for each named text. A half that stays alone becomes U+FFFD."""

    def __init__(self) -> None:
        self._held: dict[str, str] = {}
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}

    def join(self, name: str, text: str) -> str:
        text = self._held.pop(name, "") + text
        if _FIRST_HALF.search(text):
            self._held[name] = text[-1]
            text = text[:-1]
        joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        decoder = self._decoders.get(name)
        if decoder is None:
            decoder = self._decoders[name] = codecs.getincrementaldecoder("utf-8")("replace")
        return decoder.decode(_ALONE.sub("\ufffd", joined).encode("utf-8", "surrogateescape"))

    def end(self, name: str) -> str:
        decoder = self._decoders.pop(name, None)
        half = "\ufffd" if self._held.pop(name, "") else ""
        return (decoder.decode(b"", True) if decoder is not None else "") + half
