"""How a follower's text is cut into frames. The log keeps tokens; a policy is the follower's own.

Policies: `token` as they come; `auto`, the default, as they come but with what has piled up merged; `tokens:16`;
`interval:40ms`; `sentence`; `entity` (numbers, dates, URLs, names and code kept whole). Whatever the policy, the
concatenation is the same text, a merged frame's id is the last seq it covers, and `n` says how many it holds.
Nothing waits longer than `MAX_HOLD_S`; every frame that is not text flushes the text before it.
"""

import re
from collections.abc import Callable, Sequence

from headrace.errors import InvalidRequest

MAX_HOLD_S = 1.0
"""Seconds a policy may hold text back: half a sentence is better than silence."""

MAX_MERGED_BYTES = 8192
"""A merged frame's text stays under this, so that one frame never costs a slow client its whole window."""

_TEXT = b"event: text.delta\n"
_THINKING = b"event: thinking.delta\n"
_TEXT_AT = len(b'data: {"text":"')
_TEXT_END = -len(b'","ts":1764424800000}\n\n')  # a stamp has 13 digits until the year 2286
_TAIL = 8


def _kind(frame: bytes) -> bytes | None:
    """`text.delta` or `thinking.delta` as its event line, None for any other frame."""
    start = frame.index(b"\n") + 1
    if frame.startswith(_TEXT, start):
        return _TEXT
    return _THINKING if frame.startswith(_THINKING, start) else None


def _text(frame: bytes, kind: bytes) -> bytes:
    """The text of a delta as it stands in the JSON, still escaped: pieces of it can simply be joined."""
    return frame[frame.index(kind) + len(kind) + _TEXT_AT : _TEXT_END]


def merge(frames: Sequence[bytes], kind: bytes) -> bytes:
    """One frame for adjacent deltas of one kind. The id and the stamp are the last one's."""
    last = frames[-1]
    if len(frames) == 1:
        return last
    text = b"".join([_text(frame, kind) for frame in frames])
    return b'%b\n%bdata: {"text":"%b%b,"n":%d}\n\n' % (
        last[: last.index(b"\n")],
        kind,
        text,
        last[_TEXT_END:-3],
        len(frames),
    )


def merge_adjacent(frames: Sequence[bytes]) -> list[bytes]:
    """Every run of adjacent deltas of one kind as one frame (or a few, by `MAX_MERGED_BYTES`)."""
    out: list[bytes] = []
    group: list[bytes] = []
    group_kind: bytes | None = None
    size = 0
    for frame in frames:
        kind = _kind(frame)
        if kind is not group_kind or size > MAX_MERGED_BYTES:
            if group and group_kind is not None:
                out.append(merge(group, group_kind))
            group, group_kind, size = [], kind, 0
        if kind is None:
            out.append(frame)
        else:
            group.append(frame)
            size += len(frame)
    if group and group_kind is not None:
        out.append(merge(group, group_kind))
    return out


class Held:
    """Text that a policy has not sent yet, as far as policies look at it."""

    __slots__ = ("code_marks", "frames", "kind", "size", "tail")

    def __init__(self, kind: bytes) -> None:
        self.kind = kind
        self.frames: list[bytes] = []
        self.tail = ""
        self.size = 0
        self.code_marks = 0

    def add(self, frame: bytes) -> None:
        piece = _text(frame, self.kind).decode()
        self.frames.append(frame)
        self.size += len(piece)
        self.code_marks += (self.tail[-2:] + piece).count("```")
        self.tail = (self.tail + piece)[-_TAIL:]


class Chunker:
    """Holds back text until the policy says that a chunk is whole."""

    def __init__(self, is_whole: Callable[[Held], bool], hold_s: float = MAX_HOLD_S) -> None:
        self._is_whole = is_whole
        self._hold_s = hold_s
        self._held: Held | None = None
        self.due: float | None = None
        """When `flush` must be called at the latest (the caller's clock), None while nothing is held."""

    def feed(self, frames: Sequence[bytes], now: float) -> list[bytes]:
        """Take frames, give back those that are ready to be sent."""
        out: list[bytes] = []
        for frame in frames:
            kind = _kind(frame)
            if self._held is not None and kind is not self._held.kind:
                out += self.flush()
            if kind is None:
                out.append(frame)
                continue
            if self._held is None:
                self._held, self.due = Held(kind), now + self._hold_s
            self._held.add(frame)
            if self._held.size > MAX_MERGED_BYTES or self._is_whole(self._held):
                out += self.flush()
        return out

    def flush(self) -> list[bytes]:
        """What is held, now."""
        held, self._held, self.due = self._held, None, None
        return [merge(held.frames, held.kind)] if held is not None else []


# The text is still JSON-escaped here: a line break is a backslash and an n.
_SENTENCE_END = re.compile(r"""(?:[.!?…]["')\]]*(?:\s|\\n)|[。！？]["'」』）]*|\\n)$""")
_WORD_END = re.compile(r"(?:[\s,;:!?)\]}]|\\n|[\u3000-\u9fff\uff00-\uffef])$")


def _sentence(held: Held) -> bool:
    return _SENTENCE_END.search(held.tail) is not None


def _entity(held: Held) -> bool:
    return held.code_marks % 2 == 0 and _WORD_END.search(held.tail) is not None


def parse_policy(policy: str) -> Chunker | None:
    """The chunker of a `?chunk=` value; None for `auto` and `token`, which hold nothing.

    Raises:
        InvalidRequest: not a policy.
    """
    name, _, argument = policy.partition(":")
    if name in ("auto", "token") and not argument:
        return None
    if name == "sentence" and not argument:
        return Chunker(_sentence)
    if name == "entity" and not argument:
        return Chunker(_entity)
    if name == "tokens" and re.fullmatch(r"[0-9]{1,4}", argument) and 1 <= int(argument) <= 1024:
        size = int(argument)
        return Chunker(lambda held: len(held.frames) >= size)
    match = re.fullmatch(r"([0-9]{1,5})ms", argument)
    if name == "interval" and match and 1 <= int(match[1]) <= 10_000:
        return Chunker(lambda held: False, hold_s=int(match[1]) / 1000)
    raise InvalidRequest(
        f"chunk={policy!r} is not a chunking policy.",
        hint="Use auto, token, tokens:16 (1-1024), interval:40ms (1-10000), sentence or entity.",
    )
