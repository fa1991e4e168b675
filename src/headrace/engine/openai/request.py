"""Our request as the body that an OpenAI-compatible server reads. Pure."""

import json
from typing import Any

from headrace.engine.port import ModelRequest
from headrace.engine.spelling import PLAIN, Spelling, named
from headrace.engine.thoughts import Behind
from headrace.messages import Message, ToolRequest

_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "logit_bias",
    "max_tokens",
    "grammar",
    "regex",
    "json_schema",
)
_KNOWN_TO_SOME = ("scope", "priority")
"""Left out for a server whose spelling has no word for them, as the port allows."""


def completion_body(
    request: ModelRequest, *, model: str, spelling: Spelling = PLAIN, behind: Behind = lambda _: ()
) -> dict[str, Any]:
    """The body for `/chat/completions`, or for `/completions` when the request has a raw prompt.

    `behind` knows what the server signed the calls of a turn with.
    """
    body: dict[str, Any] = {"model": request.model or model, "stream": True, "stream_options": {"include_usage": True}}
    if request.prompt is not None:
        body["prompt"] = request.prompt + (request.continued or "")
    else:
        body["messages"] = [chat_message(message, spelling, behind) for message in request.messages]
        if request.continued:
            body["messages"].append({"role": "assistant", "content": request.continued})
            body.update(spelling.beginning)
    for name in _FIELDS:
        value = getattr(request, name)
        if value is not None:
            body.update(spelling.fields.get(name, named(name))(value))
    for name in _KNOWN_TO_SOME:
        if (value := getattr(request, name)) and (field := spelling.fields.get(name)):
            body.update(field(value))
    if stops := request.stop[: spelling.stops]:
        body["stop"] = list(stops)
    if request.tools:
        body.update(spelling.tools(request.tools, request.tool_choice))
    if request.logprobs is not None:
        body.update(_logprobs(request.logprobs, raw=request.prompt is not None))
    body.update(request.extra)
    return body


def _logprobs(count: int, *, raw: bool) -> dict[str, Any]:
    """At least one, because llama.cpp's server tells none at all when it is asked for the chosen tokens only."""
    count = max(1, count)
    return {"logprobs": count} if raw else {"logprobs": True, "top_logprobs": count}


def chat_message(message: Message, spelling: Spelling = PLAIN, behind: Behind = lambda _: ()) -> dict[str, Any]:
    out: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        out["content"] = message.content or None
        signed = behind(message) or [dict(spelling.call)] * len(message.tool_calls)
        out["tool_calls"] = [_call(call) | more for call, more in zip(message.tool_calls, signed, strict=True)]
    if message.call_id is not None:
        out["tool_call_id"] = message.call_id
    return out


def _call(call: ToolRequest) -> dict[str, Any]:
    return {
        "id": call.call_id,
        "type": "function",
        "function": {"name": call.name, "arguments": valid_json(call.arguments)},
    }


def valid_json(arguments: str) -> str:
    """Servers parse the arguments of earlier calls and fail on what the model once got wrong."""
    try:
        json.loads(arguments)
    except ValueError:
        return json.dumps({"invalid": arguments})
    return arguments
