"""What a server and the process of its model say to each other: lines of JSON, each with its type.

The server begins with the `Parameters` of its engine, the process answers with `Ready` or `Failed`, and from then on
requests are told apart by a number that the server chooses. Every request gets one `Ended` or `Refused`, unless it is
cancelled.
"""

from typing import Any, Literal

import msgspec

from headrace.messages import Message


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """What every library is told. `slots` answers are generated at once, each with `context` tokens, prompt and answer
    together; `parent` is the process that this one ends with."""

    model_path: str
    threads: int
    context: int
    slots: int
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
    seed: int | None = None
    logit_bias: dict[int, float] | None = None
    grammar: str | None = None
    regex: str | None = None
    json_schema: str | None = None


class Generate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """`prompt` or `messages`, and what has been said already. `scope` names those who may find what was kept of each
    other's."""

    id: int
    messages: tuple[Message, ...] = ()
    prompt: str | None = None
    continued: str = ""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    scope: str | None = None
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


class Piece(msgspec.Struct, frozen=True, tag=True):
    """Whole characters, never empty."""

    id: int
    text: str


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The answer is complete. Milliseconds, counted from when its turn had come. `cached_tokens` of the prompt needed
    not be read."""

    id: int
    reason: Literal["stop", "length"]
    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
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


Said = Ready | Failed | Piece | Ended | Refused | Seen

orders: msgspec.json.Decoder[Order] = msgspec.json.Decoder(Order)
said: msgspec.json.Decoder[Said] = msgspec.json.Decoder(Said)


def line(message: Any) -> bytes:
    return msgspec.json.encode(message) + b"\n"
