"""What an engine is: a model server that answers a request with a stream of chunks."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol

import msgspec

from headrace.messages import Message, Timing, ToolSpec, Usage

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One turn to be generated. None leaves a value to the engine.

    `grammar` is GBNF and `json_schema` a JSON Schema; at most one of them. `prompt` replaces `messages` by raw
    text for base models. `request_id` is unique for every attempt. `session` names what shares a prefix (a thread).

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
    seed: int | None = None
    stop: tuple[str, ...] = ()
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    session: str | None = None
    request_id: str | None = None
    extra: dict[str, Any] = msgspec.field(default_factory=dict)


class Text(msgspec.Struct, frozen=True, gc=False):
    """A piece of the answer: whole characters, never empty."""

    text: str


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


Chunk = Text | Thinking | ToolCallPart | Finish


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine can do. Asking for what it cannot is an EngineRejected before anything starts.

    With `continuation`, what follows at temperature 0 is what an uncut answer would have said, as long as the cut lies
    between two tokens, where every cut between two chunks lies.
    """

    tools: bool = False
    grammar: bool = False
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
