"""What a server and the process that runs OpenVINO say to each other: lines of JSON, each with its type.

The server begins with `OpenVinoParameters`, the process answers with `Ready` or `Failed`, and from then on requests
are told apart by a number that the server chooses. Every request gets one `Ended` or `Refused`, unless it is cancelled.
"""

from typing import Any, Literal

import msgspec

from headrace.messages import Message


class OpenVinoParameters(msgspec.Struct, frozen=True, kw_only=True):
    """`model_path` is a GGUF file or a folder with a model in OpenVINO's own format. `slots` answers are generated at
    once, each with `context` tokens; `batch_tokens` are computed in one step; `kv` is the type of the cache."""

    model_path: str
    threads: int
    context: int
    slots: int
    batch_tokens: int
    kv: str
    parent: int


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """As in `ModelRequest`. None leaves a value to the model's own settings."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    grammar: str | None = None
    regex: str | None = None
    json_schema: str | None = None


class Generate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """`prompt` or `messages`, and what has been said already. Smaller `priority` comes first."""

    id: int
    messages: tuple[Message, ...] = ()
    prompt: str | None = None
    continued: str = ""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    priority: int = 0
    sampling: Sampling = Sampling()


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Nothing more is to be said about this request. Its place is free after the step that is being computed."""

    id: int


class Look(msgspec.Struct, frozen=True, tag=True):
    """Ask for `Seen`."""


Order = Generate | Cancel | Look


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The model is loaded and has answered once."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """It cannot begin, or cannot go on; the process ends."""

    reason: str


class Waiting(msgspec.Struct, frozen=True, tag=True):
    """All places are taken, and so many requests come first, this one included. 0: its turn has come."""

    id: int
    position: int


class Piece(msgspec.Struct, frozen=True, tag=True):
    """Whole characters, never empty."""

    id: int
    text: str


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The answer is complete. Milliseconds, counted from when its turn had come."""

    id: int
    reason: Literal["stop", "length"]
    input_tokens: int
    output_tokens: int
    prefill_ms: float
    decode_ms: float


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """There will be no answer. `overflow`: the prompt does not fit."""

    id: int
    why: Literal["rejected", "overflow"]
    reason: str


class Seen(msgspec.Struct, frozen=True, tag=True):
    """How many answers are being generated, and how many requests wait."""

    running: int
    waiting: int


Said = Ready | Failed | Waiting | Piece | Ended | Refused | Seen

orders: msgspec.json.Decoder[Order] = msgspec.json.Decoder(Order)
said: msgspec.json.Decoder[Said] = msgspec.json.Decoder(Said)


def line(message: Any) -> bytes:
    return msgspec.json.encode(message) + b"\n"
