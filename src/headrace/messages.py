"""What a model reads, what it may call, and what it cost: the values that travel between every room."""

from typing import Any, Literal

import msgspec

Effect = Literal["none", "idempotent", "once"]
"""What running a tool twice does: `none` reads, `idempotent` may repeat with the same call_id, `once` must not."""


class ToolRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call as the model asked for it. `arguments` is the raw JSON text."""

    call_id: str
    name: str
    arguments: str


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of a conversation. A `tool` message answers the call named by `call_id`."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    tool_calls: tuple[ToolRequest, ...] = ()
    call_id: str | None = None


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the model is told about a tool, and what the runtime must know to run it.

    `parameters` is a JSON Schema object; `timeout` is in seconds; `effect` is `once` unless declared. With `approval`
    a person is asked before each call. `reads` and `writes` name resources: calls of one turn that touch what another
    writes run one after the other, in call order; all others run at the same time.
    """

    name: str
    description: str = ""
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)
    timeout: float = 30.0
    effect: Effect = "once"
    approval: bool = False
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens of one answer, or the sum over a run. `cached_tokens` are input tokens found in the prefix cache."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
        )


class Timing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Milliseconds since the turn (or run) was asked for: waiting for a slot, until the first token, in all.

    `prefill_ms` is what reading the prompt took and `decode_ms` what saying the answer took, as the engine tells it.
    """

    queued_ms: float = 0.0
    first_token_ms: float | None = None
    total_ms: float = 0.0
    prefill_ms: float | None = None
    decode_ms: float | None = None

    def after(self, waited_ms: float) -> "Timing":
        """The same answer for somebody who had waited so long before the engine was asked."""
        first = None if self.first_token_ms is None else self.first_token_ms + waited_ms
        return msgspec.structs.replace(
            self, queued_ms=self.queued_ms + waited_ms, first_token_ms=first, total_ms=self.total_ms + waited_ms
        )
