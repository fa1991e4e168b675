"""A run as a Response object: what `GET /v1/responses/{id}` gives and what lifecycle events carry.

Output items are numbered as `RunState.items` are, and none is ever left out: what was retracted stays as an
incomplete message without content, so that an `output_index` means the same item for ever.

A run that was cancelled is `cancelled`, one that stopped early `incomplete` without a reason (the schema knows two
reasons only, tokens and content filter).
"""

from typing import Any

import msgspec

from headrace.dialects.openai_citations import response_annotations
from headrace.dialects.openai_errors import run_failure
from headrace.dialects.openai_responses import ECHO, Echo
from headrace.dialects.openai_shared import arguments_json, call_of, created, short_id
from headrace.events import RunErrored
from headrace.messages import ToolSpec, Usage
from headrace.state import Item, RunState, Turn

_PREFIX = {"text": "msg", "thinking": "rs", "call": "fc"}
_CUT = frozenset({"length", "content_filter", "cancelled", "interrupted", "error"})
_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}


def response_id(run_id: str) -> str:
    return f"resp_{short_id(run_id)}"


def response_object(state: RunState) -> dict[str, Any]:
    """The response as of `state`. `usage` comes with the end."""
    echo = _echo(state)
    shown: dict[str, Any] = {
        "id": response_id(state.run_id),
        "object": "response",
        "created_at": created(state),
        "status": response_status(state),
        "background": echo.background,
        "completed_at": (state.ended_ts or 0) // 1000 if state.status == "completed" else None,
        "error": None if state.error is None else response_error(state.error),
        "incomplete_details": _incomplete_details(state),
        "instructions": state.options.get("instructions"),
        "max_output_tokens": state.options.get("max_tokens"),
        "metadata": {key: value for key, value in state.metadata.items() if isinstance(value, str)},
        "model": state.agent,
        "output": output(state),
        "parallel_tool_calls": state.options.get("parallel_tool_calls") is not False,
        "previous_response_id": echo.previous_response_id,
        "reasoning": None,
        "temperature": state.options.get("temperature"),
        "text": {"format": msgspec.to_builtins(echo.format) if echo.format else {"type": "text"}},
        "tool_choice": _tool_choice(state.options.get("tool_choice")),
        "tools": [_tool(tool) for tool in state.client_tools],
        "top_p": state.options.get("top_p"),
        "truncation": "disabled",
    }
    if state.ended:
        shown["usage"] = _usage(state.usage)
    return shown


def response_status(state: RunState) -> str:
    match state.status:
        case "queued":
            return "queued"
        case "running" | "waiting":
            return "in_progress"
        case "completed":
            return "incomplete" if state.finish_reason in _REASONS else "completed"
        case "stopped_early":
            return "incomplete"
        case "cancelled":
            return "cancelled"
        case "failed":
            return "failed"


def response_error(error: RunErrored) -> dict[str, str]:
    """Of the schema's codes, the nearest; ours stands in the message."""
    body = run_failure(error).error
    code = {"rate_limit_error": "rate_limit_exceeded", "invalid_request_error": "invalid_prompt"}
    return {"code": code.get(body.type, "server_error"), "message": f"{body.message} ({body.code})"}


def output(state: RunState) -> list[dict[str, Any]]:
    """Every item so far, the open one as it stands."""
    items = [output_item(state, index) for index in range(len(state.items))]
    return [*items, late_message(state)] if has_late_message(state) else items


def output_item(state: RunState, index: int) -> dict[str, Any]:
    """Item `index` as of `state`."""
    item = state.items[index]
    if item.kind == "call":
        return function_call(state, index)
    text = item_text(state, index)
    content = [] if item.void else [part(item.kind, text, annotations(state, index))]
    return item_shell(state, index, content, item_status(state, index))


def item_shell(state: RunState, index: int, content: list[dict[str, Any]], status: str) -> dict[str, Any]:
    """An item of text or thinking with this content."""
    if item_kind(state, index) == "thinking":
        return {
            "id": item_id(state, index),
            "type": "reasoning",
            "summary": [],
            "content": content,
            "status": status,
        }
    return {
        "id": item_id(state, index),
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": content,
    }


def function_call(state: RunState, index: int, *, begun: bool = False) -> dict[str, Any]:
    """A call of one of the client's tools; `begun` is before its arguments."""
    call = call_of(state, state.items[index].call_id)
    return {
        "id": item_id(state, index),
        "type": "function_call",
        "call_id": call.call_id,
        "name": call.name,
        "arguments": "" if begun else arguments_json(call),
        "status": "in_progress" if begun else "completed",
    }


def part(kind: str, text: str, cited: list[dict[str, Any]]) -> dict[str, Any]:
    if kind == "thinking":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": cited, "logprobs": []}


def item_id(state: RunState, index: int) -> str:
    return f"{_PREFIX[item_kind(state, index)]}_{short_id(state.run_id)}_{index}"


def item_kind(state: RunState, index: int) -> str:
    """The one after the last is the late message."""
    return state.items[index].kind if index < len(state.items) else "text"


def item_text(state: RunState, index: int) -> str:
    """What an item says: nothing once it is void."""
    item = state.items[index]
    turn = _turn(state, item)
    if item.void or turn is None:
        return ""
    whole = turn.text if item.kind == "text" else turn.thinking
    later = (i.start for i in state.items[index + 1 :] if (i.turn, i.kind, i.void) == (item.turn, item.kind, False))
    return whole[item.start : next(later, len(whole))]


def item_status(state: RunState, index: int) -> str:
    """`incomplete` for what was taken back, and for what a turn said last before it was cut."""
    item = state.items[index]
    if item.void:
        return "incomplete"
    if not item.closed and not state.ended:
        return "in_progress"
    turn = _turn(state, item)
    if turn is None or any(later.turn == item.turn for later in state.items[index + 1 :]):
        return "completed"
    if turn.finish_reason is None:
        return "incomplete" if state.ended and state.status != "completed" else "completed"
    return "incomplete" if turn.finish_reason in _CUT else "completed"


def annotations(state: RunState, index: int) -> list[dict[str, Any]]:
    """The sources a message rests on: those cited until it ended and not given to a message before it."""
    item = state.items[index]
    if item.kind != "text" or not (item.closed or (state.ended and not item.void)):
        return []
    first = 0
    for i, earlier in enumerate(state.items[:index]):
        if earlier.kind == "text" and earlier.closed:
            first = state.items[i + 1].sources
    last = state.items[index + 1].sources if item.closed else len(state.sources)
    return response_annotations(state.sources[first:last], item_text(state, index))


def has_late_message(state: RunState) -> bool:
    """An agent may give its whole output at the end without having streamed any."""
    return state.ended and bool(state.output) and not state.text


def late_message(state: RunState) -> dict[str, Any]:
    content = [part("text", state.output, response_annotations(state.sources, state.output))]
    return item_shell(state, len(state.items), content, "completed")


def _echo(state: RunState) -> Echo:
    """A run of another protocol may hold anything under that key."""
    try:
        return msgspec.convert(state.metadata.get(ECHO, {}), Echo)
    except msgspec.ValidationError:
        return Echo()


def _turn(state: RunState, item: Item) -> Turn | None:
    return next((turn for turn in state.turns if turn.turn == item.turn), None)


def _incomplete_details(state: RunState) -> dict[str, str] | None:
    reason = _REASONS.get(state.finish_reason or "")
    return {"reason": reason} if state.status == "completed" and reason else None


def _tool_choice(choice: str | None) -> str | dict[str, str]:
    if choice is None or choice in ("auto", "none", "required"):
        return choice or "auto"
    return {"type": "function", "name": choice}


def _tool(tool: ToolSpec) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description or None,
        "parameters": tool.parameters,
        "strict": None,
    }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
