"""A Chat Completions request as our start request. The agent is what they call the model."""

from typing import Any

import msgspec

from headrace.dialects.openai_input import (
    Content,
    Start,
    decode,
    given,
    json_schema_of,
    refuse,
    require_function,
    text_of,
    token_limit,
    tool_specs,
    within,
)
from headrace.errors import InvalidRequest
from headrace.messages import Message, ToolRequest


class CalledFunction(msgspec.Struct, frozen=True):
    name: str
    arguments: str = "{}"


class CalledTool(msgspec.Struct, frozen=True):
    id: str
    function: CalledFunction


class ChatMessage(msgspec.Struct, frozen=True):
    role: str
    content: Content = None
    tool_calls: tuple[CalledTool, ...] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None


class OfferedFunction(msgspec.Struct, frozen=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class OfferedTool(msgspec.Struct, frozen=True):
    type: str
    function: OfferedFunction | None = None


class NamedFunction(msgspec.Struct, frozen=True):
    name: str


class ToolChoice(msgspec.Struct, frozen=True):
    type: str
    function: NamedFunction | None = None


class SchemaFormat(msgspec.Struct, frozen=True):
    schema: dict[str, Any] | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    type: str
    json_schema: SchemaFormat | None = None


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class ChatRequest(msgspec.Struct, frozen=True):
    """`POST /v1/chat/completions`. Null means not given."""

    model: str
    messages: tuple[ChatMessage, ...]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | tuple[str, ...] | None = None
    logit_bias: dict[str, float] | None = None
    n: int | None = None
    tools: tuple[OfferedTool, ...] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    modalities: tuple[str, ...] | None = None
    functions: tuple[Any, ...] | None = None
    metadata: dict[str, str] | None = None

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


def decode_chat(body: bytes) -> ChatRequest:
    """Raises InvalidRequest."""
    return decode(body, ChatRequest)


def chat_start(request: ChatRequest) -> Start:
    """The run to be started. Raises InvalidRequest for what cannot be obeyed."""
    _refuse_unsupported(request)
    return Start(
        agent=request.model,
        input=tuple(_message(m, f"messages[{i}]") for i, m in enumerate(request.messages)),
        options=_options(request),
        client_tools=tool_specs([_offered(tool, f"tools[{i}]") for i, tool in enumerate(request.tools or ())]),
        metadata=dict(request.metadata or {}),
    )


def _refuse_unsupported(request: ChatRequest) -> None:
    refuse(not request.messages, "messages", "is empty: there is nothing to answer.")
    refuse(request.n is not None and request.n != 1, "n", "must be 1: a run has one answer.")
    refuse(bool(request.logprobs), "logprobs", "cannot be had here.", "Leave it out.")
    refuse(any(kind != "text" for kind in request.modalities or ()), "modalities", "can only be text.")
    refuse(bool(request.functions), "functions", "has long been replaced.", "Send `tools`.")


def _options(request: ChatRequest) -> dict[str, Any]:
    newer = token_limit(request.max_completion_tokens, "max_completion_tokens")
    older = token_limit(request.max_tokens, "max_tokens")
    return given(
        max_tokens=older if newer is None else newer,
        temperature=within(request.temperature, 0, 2, "temperature"),
        top_p=within(request.top_p, 0, 1, "top_p"),
        presence_penalty=within(request.presence_penalty, -2, 2, "presence_penalty"),
        frequency_penalty=within(request.frequency_penalty, -2, 2, "frequency_penalty"),
        seed=request.seed,
        stop=[request.stop] if isinstance(request.stop, str) else request.stop and list(request.stop),
        logit_bias=_logit_bias(request.logit_bias),
        tool_choice=_tool_choice(request.tool_choice),
        parallel_tool_calls=request.parallel_tool_calls,
        json_schema=_json_schema(request.response_format),
    )


def _logit_bias(bias: dict[str, float] | None) -> dict[str, float] | None:
    for token, value in (bias or {}).items():
        refuse(not token.isdecimal(), f"logit_bias.{token}", "is no token id.")
        within(value, -100, 100, f"logit_bias.{token}")
    return bias or None


def _tool_choice(choice: str | ToolChoice | None) -> str | None:
    """`auto`, `none`, `required`, or a tool's name."""
    if choice is None:
        return None
    if isinstance(choice, ToolChoice):
        require_function(choice.type, "tool_choice.type")
        if choice.function is None:
            raise InvalidRequest("tool_choice names no function.", field="tool_choice.function")
        return choice.function.name
    refuse(choice not in ("auto", "none", "required"), "tool_choice", "must be auto, none, required or a function.")
    return choice


def _json_schema(wanted: ResponseFormat | None) -> dict[str, Any] | None:
    if wanted is None:
        return None
    schema = wanted.json_schema.schema if wanted.json_schema else None
    return json_schema_of(wanted.type, schema, "response_format")


def _offered(tool: OfferedTool, field: str) -> tuple[str, str | None, dict[str, Any] | None]:
    require_function(tool.type, f"{field}.type")
    if tool.function is None:
        raise InvalidRequest(f"{field}.function is missing.", field=f"{field}.function")
    return tool.function.name, tool.function.description, tool.function.parameters


def _message(message: ChatMessage, field: str) -> Message:
    text = text_of(message.content, f"{field}.content")
    match message.role:
        case "system" | "developer":
            return Message(role="system", content=text)
        case "user":
            return Message(role="user", content=text)
        case "assistant":
            calls = tuple(
                ToolRequest(call_id=call.id, name=call.function.name, arguments=call.function.arguments)
                for call in message.tool_calls or ()
            )
            return Message(role="assistant", content=text or message.refusal or "", tool_calls=calls)
        case "tool":
            refuse(message.tool_call_id is None, f"{field}.tool_call_id", "is missing: which call does this answer?")
            return Message(role="tool", content=text, call_id=message.tool_call_id)
    raise InvalidRequest(
        f"{field}.role {message.role[:64]!r} is none of system, developer, user, assistant, tool.",
        field=f"{field}.role",
    )
