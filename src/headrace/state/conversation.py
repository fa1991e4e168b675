"""A run as the messages a model reads."""

from collections.abc import Iterable

import msgspec

from headrace.messages import Message, ToolRequest
from headrace.state.values import RunState, ToolCall, Turn


def conversation(state: RunState) -> tuple[Message, ...]:
    """What later runs of the thread read: the input, each turn, each tool's answer, in the order the model saw them.

    Every call gets exactly one answer, also one that never came (a cancelled run, a client's own tool).
    """
    messages = list(state.input)
    for turn in state.turns:
        messages += [Message(role="user", content=s.text) for s in state.steers if s.turn == turn.turn]
        messages += turn_messages(turn, state.tool_calls)
    if state.output and not any(turn.text for turn in state.turns):
        messages.append(Message(role="assistant", content=state.output))
    return tuple(messages)


def without_stand_ins(history: Iterable[Message], input: Iterable[Message]) -> tuple[Message, ...]:
    """A thread's history, less the `no_result` answers to calls of client tools that `input` now answers."""
    answered = {message.call_id for message in input if message.role == "tool"}
    return tuple(m for m in history if m.role != "tool" or m.call_id not in answered)


def turn_messages(turn: Turn, calls: Iterable[ToolCall]) -> list[Message]:
    """What the model reads of a turn afterwards: what it said, then each call's answer in call order.

    `calls` may hold those of other turns. A call that was refused before its arguments were known shows as `{}`: its
    answer says what was wrong with them.
    """
    asked = [call for call in calls if call.turn == turn.turn and was_asked(call)]
    if not turn.text and not asked:
        return []
    requests = tuple(
        ToolRequest(call_id=c.call_id, name=c.name, arguments=msgspec.json.encode(c.arguments or {}).decode())
        for c in asked
    )
    answers = [Message(role="tool", call_id=c.call_id, content=tool_answer(c)) for c in asked]
    return [Message(role="assistant", content=turn.text, tool_calls=requests), *answers]


def was_asked(call: ToolCall) -> bool:
    """Whether a call counts: its arguments are whole, or it was refused. One that was cut before does not."""
    if call.arguments is not None:
        return True
    return call.error is not None and call.error.code != "tool_cancelled"


def tool_answer(call: ToolCall) -> str:
    """A call's answer as the model reads it: text as it is, anything else as JSON, an error as its message."""
    if call.error is not None:
        hint = f" {call.error.hint}" if call.error.hint else ""
        return f"Error ({call.error.code}): {call.error.message}{hint}"
    if not call.done:
        return "Error (no_result): this call has no result."
    return call.result if isinstance(call.result, str) else msgspec.json.encode(call.result).decode()
