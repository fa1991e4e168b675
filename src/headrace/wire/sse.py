"""Server-sent events from bytes, however the network cut them.

Follows the WHATWG rules: lines end with LF, CRLF or CR; `data` lines of an event are joined with LF; one optional
space after the colon; comments and unknown fields are skipped; an event without a data line is none; a byte order
mark at the start is skipped. Characters may be cut anywhere, because only whole lines are decoded.
"""

import msgspec

from headrace.errors import PayloadTooLarge

_BOM = b"\xef\xbb\xbf"


class ServerSentEvent(msgspec.Struct, frozen=True, gc=False):
    """One event. `id` and `retry` (ms) are None when this event has no such line."""

    event: str
    data: str
    id: str | None = None
    retry: int | None = None


class SSEDecoder:
    """Bytes in, events out.

    `last_id` and `retry` are the latest the stream has named, also by events without data; a client reconnects with
    them. `max_event_bytes` bounds what one event may occupy; None is no bound, and a line has none of its own. `errors`
    says what becomes of bytes in the data that are no UTF-8, as for `bytes.decode`.
    """

    def __init__(self, *, max_event_bytes: int | None = None, errors: str = "replace") -> None:
        self.last_id: str | None = None
        self.retry: int | None = None
        self._max = max_event_bytes
        self._errors = errors
        self._parts: list[bytes] = []  # the line that has not ended
        self._size = 0  # bytes of the event that has not ended
        self._at_start = True
        self._after_cr = False
        self._clear()

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """The events that `data` completes. Raises PayloadTooLarge; the decoder is of no use after that."""
        if self._is_one_token(data):
            self._at_start = False
            return [ServerSentEvent("message", data[6:-2].decode("utf-8", self._errors))]
        if b"\r" in data or self._after_cr:
            data = self._with_line_feeds(data)
        lines = data.split(b"\n")
        if len(lines) == 1:
            self._hold(data)
            return []
        if self._parts:
            held = b"".join(self._parts)
            self._parts.clear()
            self._size -= len(held)  # counted again below, as part of its line
            lines[0] = held + lines[0]
        rest = lines.pop()
        events = self._take(lines)
        self._hold(rest)
        return events

    def flush(self) -> list[ServerSentEvent]:
        """The event whose blank line never came. For servers that end a stream without it; a reader that must not
        trust a torn event does not call this."""
        return self.feed(b"\n\n")

    def _is_one_token(self, data: bytes) -> bool:
        """Whether it is one whole event of one data line, after whole events: so most servers write a token. Taken by
        itself it costs a third less."""
        return (
            data.startswith(b"data: ")
            and data.find(b"\n") == len(data) - 2
            and data.endswith(b"\n")
            and not (self._size or self._after_cr or b"\r" in data)
            and (self._max is None or len(data) <= self._max)
        )

    def _take(self, lines: list[bytes]) -> list[ServerSentEvent]:
        if self._at_start:
            self._at_start = False
            lines[0] = lines[0].removeprefix(_BOM)
        events: list[ServerSentEvent] = []
        for line in lines:
            if not line:
                if self._data is not None:
                    events.append(self._event_ended())
                self._clear()
                continue
            self._count(len(line))
            if line.startswith(b"data:"):
                self._add_data(line[6:] if line[5:6] == b" " else line[5:])
            elif line[0] != 0x3A:  # a colon starts a comment
                self._field(line)
        return events

    def _hold(self, rest: bytes) -> None:
        if rest:
            self._parts.append(rest)
            self._count(len(rest))

    def _count(self, size: int) -> None:
        self._size += size
        if self._max is not None and self._size > self._max:
            raise PayloadTooLarge(
                f"An event of the stream is larger than {self._max} bytes.", hint="Raise max_event_bytes if it should."
            )

    def _with_line_feeds(self, data: bytes) -> bytes:
        if not data:
            return data
        if self._after_cr and data[0] == 0x0A:
            data = data[1:]
            self._after_cr = False
            if not data:
                return data
        self._after_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _clear(self) -> None:
        self._data: list[bytes] | None = None
        self._name = ""
        self._id: str | None = None
        self._event_retry: int | None = None
        self._size = 0

    def _event_ended(self) -> ServerSentEvent:
        data = b"\n".join(self._data or ()).decode("utf-8", self._errors)
        return ServerSentEvent(self._name or "message", data, self._id, self._event_retry)

    def _add_data(self, value: bytes) -> None:
        if self._data is None:
            self._data = [value]
        else:
            self._data.append(value)

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._add_data(value)
        elif name == b"event":
            self._name = value.decode("utf-8", "replace")
        elif name == b"id" and b"\0" not in value:
            self._id = self.last_id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit():
            self._event_retry = self.retry = int(value)
