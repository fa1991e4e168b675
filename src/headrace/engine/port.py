"""What an engine is: a model server that answers a request with a stream of chunks."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import msgspec

from headrace.messages import Message, Timing, ToolSpec, Usage

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]

Parameter = Literal[
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "logit_bias",
]
"""What may be said about how tokens are chosen; the names of fields of `ModelRequest`."""

ToolChoice = Literal["auto", "none", "required", "named"]
"""How `ModelRequest.tool_choice` may be used; `named` is a tool's name."""

PARAMETERS: frozenset[Parameter] = frozenset(get_args(Parameter))
TOOL_CHOICES: frozenset[ToolChoice] = frozenset(get_args(ToolChoice))


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One turn to be generated. None leaves a value to the engine.

    `grammar` is GBNF, `regex` a regular expression of the whole answer and `json_schema` a JSON Schema; at most one of
    them. `prompt` replaces `messages` by raw text for base models. `request_id` is unique for every attempt. `session`
    names what shares a prefix (a thread).

    `tool_choice` is auto, none, required or a tool's name. An answer ends before the first of `stop` and holds none of
    it. `logit_bias` adds to the logits of token ids, from -100 (never) to 100. `repetition_penalty` is 1.0 for none.
    `logprobs` asks for the log probability of every token, and of so many others that were likely at its place.

    `scope` names those who may learn of each other: an engine that can keep the cached prefixes of scopes apart does,
    since the time of an answer tells what others have asked. None for one that is everybody's.

    `priority` is 0 when a person waits for the answer; larger numbers are for work that may wait longer, as in vLLM.
    Who has no line of its own in front of the engine ignores it.

    `extra` is added to the body as it is, for what only one server knows; nobody checks it.

    `continued` is the beginning of the answer, never empty, that has been said already: the engine goes on after its
    last character, and the chunks hold only what follows. `max_tokens`, `grammar`, `json_schema` and `stop` are about
    what follows too: a stop that begins in `continued` is not seen. So are penalties, at servers that count only what
    they generate.
    """

    messages: tuple[Message, ...] = ()
    prompt: str | None = None
    continued: str | None = None
    model: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logit_bias: dict[int, float] | None = None
    logprobs: int | None = None
    grammar: str | None = None
    regex: str | None = None
    json_schema: dict[str, Any] | None = None
    session: str | None = None
    scope: str | None = None
    request_id: str | None = None
    priority: int = 0
    extra: dict[str, Any] = msgspec.field(default_factory=dict)


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """The natural logarithm of a token's probability. `data` is its bytes, where the engine tells them: a token may be
    half a character. `top` are the likeliest tokens at its place, likeliest first, if the request asked for some."""

    token: str
    logprob: float
    data: bytes | None = None
    top: tuple["TokenLogprob", ...] = ()


class Text(msgspec.Struct, frozen=True, gc=False):
    """A piece of the answer: whole characters, never empty. `logprobs` are of the tokens that have come since the piece
    before, if the request asked for them; a token's text may stand in two pieces."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class Thinking(msgspec.Struct, frozen=True, gc=False):
    """A piece of the reasoning: whole characters, never empty."""

    text: str


class ToolCallPart(msgspec.Struct, frozen=True, kw_only=True):
    """A fragment of a tool call. The adapter has sorted out the server's habits: `index` is the call's, counted
    from 0 in order of appearance; `call_id` and `name` come with the first fragment of a call and only there."""

    index: int
    call_id: str | None = None
    name: str | None = None
    arguments: str = ""


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    """The last chunk of every stream that did not raise. `reason` is `tool_calls` whenever a call was made."""

    reason: FinishReason
    usage: Usage = Usage()
    timing: Timing = Timing()


class Queued(msgspec.Struct, frozen=True):
    """The request waits in front of the engine. `position` counts from 1, and 0 says that the wait is over. Comes
    before anything the model says, and may repeat."""

    position: int


class Routed(msgspec.Struct, frozen=True, kw_only=True):
    """Which model answers, where that was chosen while the request was under way. Comes before anything it says.
    `fallback_of` is the model that should have answered and could not."""

    model: str
    why: str
    fallback_of: str | None = None


Chunk = Text | Thinking | ToolCallPart | Queued | Routed | Finish


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine can do. Asking for what it cannot is an EngineRejected before anything starts, naming the field.

    `sampling` are the fields that change what it says; `max_tokens` always does. With `continuation`, what follows at
    temperature 0 is what an uncut answer would have said, as long as the cut lies between two tokens, where every cut
    between two chunks lies.
    """

    tools: bool = False
    tool_choice: frozenset[ToolChoice] = TOOL_CHOICES
    sampling: frozenset[Parameter] = frozenset({"temperature", "top_p", "stop"})
    logprobs: bool = False
    grammar: bool = False
    regex: bool = False
    json_schema: bool = False
    thinking: bool = False
    raw_prompt: bool = False
    continuation: bool = False
    embeddings: bool = False
    context_tokens: int | None = None
    slots: int | None = None


class Engine(Protocol):
    """An async context manager too: entering starts what must be started, leaving stops it."""

    @property
    def name(self) -> str:
        """For records and logs: `llamacpp`, `openai`, `scripted` …"""
        ...

    @property
    def model(self) -> str:
        """The model it answers with when the request names none."""
        ...

    @property
    def capabilities(self) -> Capabilities: ...

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        """Generate. Leaving the context stops the generation at the server, also before the first chunk.

        Raises (on entering or while iterating):
            EngineUnavailable: it cannot be reached; nothing was generated.
            EngineOverloaded: it asks to come back later.
            EngineRejected, ContextOverflow: it refuses this request.
            EngineDied: the stream broke after it had begun.
            EngineTimeout, EngineProtocol.
        """
        ...

    async def __aenter__(self) -> "Engine": ...

    async def __aexit__(self, *exc: object) -> None: ...


class Embedder(Protocol):
    """What an engine with the capability `embeddings` is too."""

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector for each text, in order. Raises what `Engine.stream` raises."""
        ...


@runtime_checkable
class Keeping(Protocol):
    """What an engine is too whose process can outlive this one."""

    def keep(self) -> None:
        """Leave the process to the next server when this engine is left."""
        ...
