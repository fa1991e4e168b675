"""A Responses request as our start request. The agent is what they call the model."""

from collections.abc import Sequence
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

ECHO = "openai"
"""The key of a run's metadata that holds what a response object has to repeat of its request."""


class InputItem(msgspec.Struct, frozen=True):
    """Every kind of input item in one: `type` may be left out for a message."""

    type: str | None = None
    role: str | None = None
    content: Content = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: Content = None


class FunctionTool(msgspec.Struct, frozen=True):
    type: str
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None


class FunctionChoice(msgspec.Struct, frozen=True):
    type: str
    name: str = ""


class TextFormat(msgspec.Struct, frozen=True, omit_defaults=True):
    type: str
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct, frozen=True):
    format: TextFormat | None = None


class ResponseRequest(msgspec.Struct, frozen=True):
    """`POST /v1/responses`. Null means not given."""

    model: str
    input: str | tuple[InputItem, ...]
    instructions: str | None = None
    previous_response_id: str | None = None
    background: bool | None = None
    store: bool | None = None
    stream: bool | None = None
    tools: tuple[FunctionTool, ...] | None = None
    tool_choice: str | FunctionChoice | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    text: TextOptions | None = None
    metadata: dict[str, str] | None = None
    conversation: Any = None
    prompt: Any = None


class Echo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a response object repeats and a run has no field for."""

    previous_response_id: str | None = None
    background: bool = False
    format: TextFormat | None = None


def decode_response(body: bytes) -> ResponseRequest:
    """Raises InvalidRequest."""
    return decode(body, ResponseRequest)


def response_start(request: ResponseRequest) -> Start:
    """The run to be started. Raises InvalidRequest for what cannot be obeyed."""
    _refuse_unsupported(request)
    format = request.text.format if request.text else None
    for i, tool in enumerate(request.tools or ()):
        require_function(tool.type, f"tools[{i}].type")
    return Start(
        agent=request.model,
        input=tuple(_messages(request.input)),
        options=given(
            instructions=request.instructions or None,
            max_tokens=token_limit(request.max_output_tokens, "max_output_tokens"),
            temperature=within(request.temperature, 0, 2, "temperature"),
            top_p=within(request.top_p, 0, 1, "top_p"),
            tool_choice=_tool_choice(request.tool_choice),
            parallel_tool_calls=request.parallel_tool_calls,
            json_schema=json_schema_of(format.type, format.schema, "text.format") if format else None,
        ),
        client_tools=tool_specs([(tool.name, tool.description, tool.parameters) for tool in request.tools or ()]),
        metadata={**(request.metadata or {}), ECHO: msgspec.to_builtins(_echo(request, format))},
    )


def _refuse_unsupported(request: ResponseRequest) -> None:
    refuse(not request.input, "input", "is empty: there is nothing to answer.")
    refuse(request.conversation is not None, "conversation", "is unknown here.", "Send previous_response_id.")
    refuse(request.prompt is not None, "prompt", "templates are not kept here.", "Send the text as input.")
    refuse(
        bool(request.background) and request.store is False,
        "background",
        "needs store: a response nobody keeps cannot be picked up.",
    )
    refuse(ECHO in (request.metadata or {}), f"metadata.{ECHO}", "is reserved.")


def _echo(request: ResponseRequest, format: TextFormat | None) -> Echo:
    return Echo(
        previous_response_id=request.previous_response_id,
        background=bool(request.background),
        format=format,
    )


def _tool_choice(choice: str | FunctionChoice | None) -> str | None:
    """`auto`, `none`, `required`, or a tool's name."""
    if isinstance(choice, FunctionChoice):
        require_function(choice.type, "tool_choice.type")
        return choice.name
    refuse(
        choice not in (None, "auto", "none", "required"), "tool_choice", "must be auto, none, required or a function."
    )
    return choice


def _messages(input: str | Sequence[InputItem]) -> list[Message]:
    if isinstance(input, str):
        return [Message(role="user", content=input)]
    messages: list[Message] = []
    for i, item in enumerate(input):
        _add(messages, item, f"input[{i}]")
    return messages


def _add(messages: list[Message], item: InputItem, field: str) -> None:
    """Append an item. Calls join the assistant's message before them: to us they are one answer."""
    match item.type or "message":
        case "message":
            messages.append(_message(item, field))
        case "function_call":
            call = _call(item, field)
            if messages and messages[-1].role == "assistant":
                calls = (*messages[-1].tool_calls, call)
                messages[-1] = msgspec.structs.replace(messages[-1], tool_calls=calls)
            else:
                messages.append(Message(role="assistant", tool_calls=(call,)))
        case "function_call_output":
            refuse(item.call_id is None, f"{field}.call_id", "is missing: which call does this answer?")
            content = text_of(item.output, f"{field}.output")
            messages.append(Message(role="tool", content=content, call_id=item.call_id))
        case "reasoning":
            pass  # clients hand back what they were shown; the model does not read it again
        case other:
            raise InvalidRequest(f"Items of type {other[:64]!r} cannot be read here.", field=f"{field}.type")


def _message(item: InputItem, field: str) -> Message:
    text = text_of(item.content, f"{field}.content")
    match item.role:
        case "system" | "developer":
            return Message(role="system", content=text)
        case "user":
            return Message(role="user", content=text)
        case "assistant":
            return Message(role="assistant", content=text)
    raise InvalidRequest(f"{field}.role must be user, assistant, system or developer.", field=f"{field}.role")


def _call(item: InputItem, field: str) -> ToolRequest:
    if item.call_id is None or item.name is None:
        raise InvalidRequest(f"{field} needs call_id and name.", field=field)
    return ToolRequest(call_id=item.call_id, name=item.name, arguments=item.arguments or "{}")
