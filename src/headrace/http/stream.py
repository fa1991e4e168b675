"""A run as server-sent events: a follower whose sink is one HTTP response.

Nothing runs for a stream but the log's own tick: the endpoint waits for the client to go away, the follower writes.
"""

import asyncio
from collections.abc import Sequence

import msgspec

from headrace.errors import InvalidCursor
from headrace.http.exchange import Exchange, Headers
from headrace.http.outlet import Outlet, Send
from headrace.http.pulse import Pulse
from headrace.http.serving import chunk_writer
from headrace.log.follow import Follower
from headrace.log.ports import Head, Log
from headrace.state import RunState
from headrace.wire.view import View

HEARTBEAT = b": hb\n"
"""One newline: with a blank line some clients would see an empty message (fetch-event-source, older Go decoders)."""

RETRY_MS = 500
"""What an EventSource is told to wait before it reconnects."""

MAX_WRITE = 16 * 1024
"""Bytes given to a socket at once, so that a client that stops reading holds no more than a few of these."""

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]

_json = msgspec.json.Encoder()


def parse_view(query: dict[str, str]) -> View:
    """From `?chunk=` and `?types=`. Raises InvalidRequest."""
    if not query:
        return View()
    names = (name.strip() for name in query.get("types", "").split(","))
    return View(query.get("chunk") or "auto", [name for name in names if name])


def parse_cursor(text: str | None) -> int:
    """The seq a client has seen: 0 for none (absent, empty, or the `-1` that some libraries send).

    Raises:
        InvalidCursor: not a whole number from 0.
    """
    if text is None or text.strip() in ("", "-1"):
        return 0
    text = text.strip()
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise InvalidCursor(
            f"The cursor {text[:40]!r} is not a seq of this run.", hint="Send the last id you received."
        )
    return int(text)


async def known_head(log: Log, run_id: str, after: int) -> Head:
    """The head of a run of which the client has seen `after`.

    Raises:
        InvalidCursor: the cursor is ahead of the run, wherever one asks: another run's, or another server's.
        LogUnavailable: it is ahead of what is known here, and the store could not be asked.
    """
    head = await log.head(run_id)
    if after > head.seq:
        await log.catch_up(run_id)
        head = await log.head(run_id)
    if after > head.seq:
        raise InvalidCursor(
            f"The cursor {after} is ahead of this run, whose last record is {head.seq}.",
            hint="It may be another run's. Start again without a cursor.",
        )
    return head


class EventStream:
    """The sink of one SSE response (log.follow.Sink): whole frames, in order, as fast as the client reads."""

    __slots__ = (
        "_body",
        "_ending",
        "_outlet",
        "_preface",
        "_pulse",
        "_sent",
        "_timer",
        "_view",
        "follower",
        "quiet",
    )

    def __init__(self, send: Send, pulse: Pulse, view: View) -> None:
        self.follower: Follower | None = None
        self.quiet = 0
        self._view = view
        self._pulse = pulse
        self._preface = b"retry: %d\n" % RETRY_MS
        self._body = b""  # what the client has not taken yet: [_sent:] of it
        self._sent = 0
        self._ending = False
        self._timer: asyncio.TimerHandle | None = None
        self._outlet = Outlet(send, write=chunk_writer(send), on_ready=self._ready, on_lost=self.close)
        pulse.add(self)

    def open(self) -> None:
        """Say something at once, also where the run has nothing to say yet: proxies pass on what has a body."""
        if self._preface and not self._outlet.busy:
            self._write(b"")

    def frames(self, frames: Sequence[bytes]) -> bool:
        if len(frames) > 1 or not self._view.plain:
            frames = self._view.frames(frames, asyncio.get_running_loop().time())
            self._arm(self._view.due)
        return self._write(frames[0] if len(frames) == 1 else b"".join(frames))

    def snapshot(self, state: RunState) -> bool:
        self._view.flush()  # what was held back is in the snapshot
        self._arm(None)
        data = _json.encode({"as_of_seq": state.seq, "state": state})
        return self._write(b"id: %d\nevent: run.snapshot\ndata: %b\n\n" % (state.seq, data))

    def end(self) -> None:
        self._ending = True
        if not self._outlet.busy:
            self._finish()

    def fail(self, error: Exception) -> None:
        """The log cannot be read: cut the stream, so that the client comes back."""
        self.end()

    def beat(self) -> None:
        if not self._outlet.busy:
            self._outlet.body(HEARTBEAT)

    def go_away(self) -> None:
        """A stream that ends without the terminal record was cut, not finished: the client resumes elsewhere."""
        if self.follower is not None:
            self.follower.close()
        self.end()

    def close(self) -> None:
        """The client has gone, or everything has been said."""
        self._pulse.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self.follower is not None:
            self.follower.close()
        self._outlet.close()

    def _write(self, body: bytes) -> bool:
        preface, self._preface = self._preface, b""
        if len(body) > MAX_WRITE:
            self._body, self._sent = body, 0  # never copied: it may be megabytes, for every client that stalls in it
            return self._write_pieces(preface)
        if preface:
            body = preface + body
        if not body:
            return True
        self.quiet = 0
        return self._outlet.body(body)

    def _write_pieces(self, preface: bytes = b"") -> bool:
        """A large body goes out in pieces, each when the client has taken the one before."""
        self.quiet = 0
        while self._sent < len(self._body):
            piece = preface + self._body[self._sent : self._sent + MAX_WRITE]
            self._sent += MAX_WRITE
            preface = b""
            if not self._outlet.body(piece):
                return False
        self._body = b""
        return True

    def _ready(self) -> None:
        self.quiet = 0
        if self._body and not self._write_pieces():
            return
        if self._ending:
            self._finish()
        elif self.follower is not None:
            self.follower.pump()

    def _finish(self) -> None:
        self._pulse.discard(self)
        self._outlet.send({"type": "http.response.body", "body": b"", "more_body": False})

    def _arm(self, due: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if due is None else asyncio.get_running_loop().call_at(due, self._flush)

    def _flush(self) -> None:
        """Text has been held back long enough. A busy client gets it with what comes next."""
        self._timer = None
        if self._outlet.busy:
            return
        if not self._write(b"".join(self._view.flush())) and self.follower is not None:
            self.follower.block()


async def open_stream(
    exchange: Exchange, log: Log, pulse: Pulse, *, run_id: str, after: int, view: View, headers: Headers = ()
) -> EventStream:
    """Send the headers at once and follow the run from `after`, until the client has gone and `close` is called."""
    heartbeat = (b"x-heartbeat-interval", b"%g" % pulse.interval)
    await exchange.start(200, [*STREAM_HEADERS, heartbeat, *headers])
    stream = EventStream(exchange.send, pulse, view)
    stream.follower = Follower(log, run_id, after, stream)
    stream.follower.start()
    stream.open()
    return stream
