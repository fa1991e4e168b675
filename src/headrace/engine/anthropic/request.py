"""Our request as the body of Anthropic's Messages API. Pure.

What stands at the beginning of a conversation (tools, system, history) is marked for the prefix cache, and the volatile
tail behind it is not. The API knows no system message but the first: a later one is told by the user's side.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.engine.port import ModelRequest
from headrace.engine.thoughts import Behind, Block
from headrace.messages import Message, ToolRequest, ToolSpec

_CACHED = {"cache_control": {"type": "ephemeral"}}
_NO_ID = re.compile("[^a-zA-Z0-9_-]")


def messages_body(
    request: ModelRequest,
    *,
    model: str,
    max_tokens: int,
    thinking: Mapping[str, Any] | None = None,
    behind: Behind = lambda _: (),
) -> dict[str, Any]:
    """`max_tokens` is for a request that names none: the API wants a number. `thinking` is its own field."""
    first = _first_turn(request.messages)
    system, turns = _texts(request.messages[:first]), request.messages[first:]
    body: dict[str, Any] = {
        "model": request.model or model,
        "max_tokens": request.max_tokens or max_tokens,
        "stream": True,
        "messages": _messages(turns, behind),
        **_sampling(request),
        **_tools(request, mark=not system),
    }
    if system:
        system[-1] |= _CACHED
        body["system"] = system
    if request.continued:
        body["messages"].append({"role": "assistant", "content": request.continued})
    if request.json_schema is not None:
        body["output_config"] = {"format": {"type": "json_schema", "schema": request.json_schema}}
    if thinking is not None:
        must_stop = thinking.get("type") == "enabled" and not _may_think(turns, behind)
        body["thinking"] = {"type": "disabled"} if must_stop else dict(thinking)
    return body | request.extra


def _sampling(request: ModelRequest) -> dict[str, Any]:
    fields = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "stop_sequences": list(request.stop) or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _tools(request: ModelRequest, *, mark: bool) -> dict[str, Any]:
    if not request.tools:
        return {}
    fields: dict[str, Any] = {"tools": [_tool(tool) for tool in request.tools]}
    if mark:
        fields["tools"][-1] |= _CACHED
    if request.tool_choice is not None:
        fields["tool_choice"] = _choice(request.tool_choice)
    return fields


def _first_turn(messages: Sequence[Message]) -> int:
    return next((at for at, message in enumerate(messages) if message.role != "system"), len(messages))


def _texts(messages: Iterable[Message]) -> list[Block]:
    """An empty text is an error."""
    return [{"type": "text", "text": message.content} for message in messages if message.content]


def _messages(turns: Sequence[Message], behind: Behind) -> list[dict[str, Any]]:
    """Neighbours of the same side are one message: all results of a turn's calls must stand in one."""
    tail = len(turns) - next((n for n, message in enumerate(reversed(turns)) if message.role != "system"), len(turns))
    merged: list[dict[str, Any]] = []
    for at, message in enumerate(turns):
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _blocks(message, behind)
        if at == tail - 1 and blocks and blocks[-1]["type"] not in ("thinking", "redacted_thinking"):
            blocks[-1] |= _CACHED
        if merged and merged[-1]["role"] == role:
            merged[-1]["content"] += blocks
        elif blocks:
            merged.append({"role": role, "content": blocks})
    return merged


def _blocks(message: Message, behind: Behind) -> list[Block]:
    if message.role == "tool":
        result = {"type": "tool_result", "tool_use_id": _id(message.call_id or ""), "content": message.content}
        return [result]
    thought = [dict(block) for block in behind(message)] if message.tool_calls else []
    return [*thought, *_texts([message]), *(_use(call) for call in message.tool_calls)]


def _use(call: ToolRequest) -> Block:
    return {"type": "tool_use", "id": _id(call.call_id), "name": call.name, "input": _object(call.arguments)}


def _object(arguments: str) -> dict[str, Any]:
    """Only an object is taken, whatever the model once made of it."""
    try:
        value = json.loads(arguments or "{}")
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"invalid": arguments}


def _id(call_id: str) -> str:
    return _NO_ID.sub("_", call_id)


def _tool(tool: ToolSpec) -> Block:
    schema = tool.parameters or {"type": "object", "properties": {}}
    return {"name": tool.name, "description": tool.description, "input_schema": schema}


def _choice(choice: str) -> dict[str, Any]:
    match choice:
        case "auto" | "none":
            return {"type": choice}
        case "required":
            return {"type": "any"}
        case name:
            return {"type": "tool", "name": name}


def _may_think(turns: Sequence[Message], behind: Behind) -> bool:
    """Whether a model with a budget for it may think now: in the middle of its calls it must be given what it thought
    before them. One that decides for itself goes on without."""
    last = next((message for message in reversed(turns) if message.role in ("user", "assistant")), None)
    return last is None or last.role == "user" or not last.tool_calls or bool(behind(last))
