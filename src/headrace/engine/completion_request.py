"""Our request as the body that an OpenAI-compatible server reads. Pure."""

import json
from typing import Any

from headrace.engine.port import ModelRequest
from headrace.messages import Message, ToolRequest, ToolSpec

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "seed")
_CHOICES = ("auto", "none", "required")


def completion_body(request: ModelRequest, *, model: str) -> dict[str, Any]:
    """The body for `/chat/completions`, or for `/completions` when the request has a raw prompt."""
    body: dict[str, Any] = {"model": request.model or model, "stream": True, "stream_options": {"include_usage": True}}
    if request.prompt is not None:
        body["prompt"] = request.prompt + (request.continued or "")
    else:
        body["messages"] = [_message(message) for message in request.messages]
        _add_beginning(body, request.continued)
    for name in _SAMPLING:
        value = getattr(request, name)
        if value is not None:
            body[name] = value
    if request.max_tokens is not None:
        body["max_tokens"] = request.max_tokens
    if request.stop:
        body["stop"] = list(request.stop)
    _add_tools(body, request)
    _add_shape(body, request)
    body.update(request.extra)
    return body


def _add_beginning(body: dict[str, Any], said: str | None) -> None:
    """vLLM and SGLang go on with the last message if they are told so, and llama.cpp does in any case."""
    if said:
        body["messages"].append({"role": "assistant", "content": said})
        body["continue_final_message"] = True
        body["add_generation_prompt"] = False


def _add_tools(body: dict[str, Any], request: ModelRequest) -> None:
    if not request.tools:
        return
    body["tools"] = [_tool(tool) for tool in request.tools]
    choice = request.tool_choice
    if choice is not None:
        body["tool_choice"] = choice if choice in _CHOICES else {"type": "function", "function": {"name": choice}}


def _add_shape(body: dict[str, Any], request: ModelRequest) -> None:
    if request.grammar is not None:
        body["grammar"] = request.grammar
    if request.json_schema is not None:
        schema = {"name": "answer", "schema": request.json_schema, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}


def _message(message: Message) -> dict[str, Any]:
    out: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        out["content"] = message.content or None
        out["tool_calls"] = [_call(call) for call in message.tool_calls]
    if message.call_id is not None:
        out["tool_call_id"] = message.call_id
    return out


def _call(call: ToolRequest) -> dict[str, Any]:
    return {
        "id": call.call_id,
        "type": "function",
        "function": {"name": call.name, "arguments": _valid_json(call.arguments)},
    }


def _valid_json(arguments: str) -> str:
    """Servers parse the arguments of earlier calls and fail on what the model once got wrong."""
    try:
        json.loads(arguments)
    except ValueError:
        return json.dumps({"invalid": arguments})
    return arguments


def _tool(tool: ToolSpec) -> dict[str, Any]:
    parameters = tool.parameters or {"type": "object", "properties": {}}
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": parameters},
    }
