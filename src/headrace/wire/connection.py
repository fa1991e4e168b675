"""The server's side of a WebSocket: text in, commands out, and back. No socket, no clock.

A message holds one or more frames, one JSON object a line. What a client sends becomes a `Command`; what cannot be
read becomes an error frame for that client and nothing else. Close codes say whether to come back: 4000-4499 do,
4500-4999 don't.
"""

import itertools
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

from headrace.errors import HeadraceError, InvalidRequest
from headrace.state import RunState
from headrace.wire.codec import frame_data, frame_seq, frame_type, nests_too_deep

SUBPROTOCOL = "headrace.v1.json"

MAX_COMMANDS = 1000
"""Frames in one message of a client."""

CLOSE_GOING_AWAY = 4001
"""The server is leaving: come back, here or elsewhere."""
CLOSE_SILENT = 4002
"""Nothing was heard from the client for too long: come back."""
CLOSE_UNAUTHORIZED = 4500
CLOSE_TOO_LARGE = 4501
CLOSE_NO_SUBPROTOCOL = 4502


Key = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
"""What `Idempotency-Key` is over HTTP."""


class Command(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True):
    """`ref` is the client's own name for a command; the answer carries it."""

    ref: str | int | None = None


class Start(Command, frozen=True, kw_only=True, tag="start"):
    """`run` is the body of `POST /v1/runs`; the socket follows the run it starts."""

    run: msgspec.Raw
    key: Key | None = None


class Follow(Command, frozen=True, kw_only=True, tag="follow"):
    run_id: str
    after: int = 0
    chunk: str = "auto"
    types: list[str] | None = None


class Unfollow(Command, frozen=True, kw_only=True, tag="unfollow"):
    run_id: str


class Ack(Command, frozen=True, kw_only=True, tag="ack"):
    run_id: str
    seq: int


class Cancel(Command, frozen=True, kw_only=True, tag="cancel"):
    run_id: str
    reason: str | None = None


class Steer(Command, frozen=True, kw_only=True, tag="steer"):
    run_id: str
    text: str
    mode: Literal["interrupt", "next_turn"] = "next_turn"
    key: Key | None = None


class Answer(Command, frozen=True, kw_only=True, tag="input"):
    run_id: str
    input_id: str
    value: Any


class Ping(Command, frozen=True, kw_only=True, tag="ping"):
    pass


AnyCommand = Start | Follow | Unfollow | Ack | Cancel | Steer | Answer | Ping

_decoder = msgspec.json.Decoder(AnyCommand)
_json = msgspec.json.Encoder()


def read_commands(text: str) -> Iterator[AnyCommand | HeadraceError]:
    """The commands of a message, one by one; an error in the place of each line that is none.

    Lines after the first `MAX_COMMANDS` are one error.
    """
    lines = (line for line in text.split("\n") if line.strip())
    for line in itertools.islice(lines, MAX_COMMANDS):
        yield _read(line)
    if next(lines, None) is not None:
        yield InvalidRequest(f"A message holds at most {MAX_COMMANDS} frames.", hint="Send the rest in another one.")


def _read(line: str) -> AnyCommand | HeadraceError:
    raw = line.encode("utf-8", "surrogatepass")
    if nests_too_deep(raw):
        return InvalidRequest("A frame is nested too deeply.", hint="Send flatter JSON.")
    try:
        command = _decoder.decode(raw)
        _json.encode(command)  # a lone surrogate can be read but never written
    except msgspec.ValidationError as exc:
        return InvalidRequest(f"This is not a command: {exc}.", hint="PROTOCOL.md lists the frames.")
    except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
        return InvalidRequest(f"A frame is not valid JSON: {exc}.", hint="Send one JSON object a line.")
    return command


def record_frame(run_id: str, frame: bytes) -> bytes:
    """A record as it travels on a WebSocket, made of its SSE frame without decoding it."""
    return b'{"type":"record","run_id":"%b","seq":%d,"event":"%b","data":%b}' % (
        run_id.encode(),
        frame_seq(frame),
        frame_type(frame).encode(),
        frame_data(frame),
    )


def snapshot_frame(state: RunState) -> bytes:
    return _json.encode({"type": "snapshot", "run_id": state.run_id, "as_of_seq": state.seq, "state": state})


def answer_frame(kind: str, ref: str | int | None, **fields: Any) -> bytes:
    """`started`, `following`, `ended`, `accepted`, `pong`: the answer to a command."""
    return _json.encode({"type": kind, **({} if ref is None else {"ref": ref}), **fields})


def error_frame(error: HeadraceError, ref: str | int | None = None, *, run_id: str | None = None) -> bytes:
    """`run_id` says that the error is that run's and no other's."""
    named = {} if run_id is None else {"run_id": run_id}
    said = {"code": error.code, "message": error.message, "hint": error.hint, "retry": error.retryable}
    return answer_frame("error", ref, **named, **said)


def refusal_frame(error: HeadraceError, command: AnyCommand) -> bytes:
    """The answer to a command that was not done."""
    run_id = None if isinstance(command, Start | Ping) else command.run_id
    return error_frame(error, command.ref, run_id=run_id)


def going_away_frame() -> bytes:
    return b'{"type":"going_away"}'
