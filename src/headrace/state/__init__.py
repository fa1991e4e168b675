"""What a run is, as a function of its records: `values.py` what, `reducer.py` how, `conversation.py` for a model."""

from headrace.state.conversation import conversation, tool_answer, turn_messages, was_asked, without_stand_ins
from headrace.state.reducer import apply, apply_deltas, fold
from headrace.state.values import ENDED, Input, Item, Node, RunState, Status, Steer, ToolCall, Turn, initial

__all__ = [
    "ENDED",
    "Input",
    "Item",
    "Node",
    "RunState",
    "Status",
    "Steer",
    "ToolCall",
    "Turn",
    "apply",
    "apply_deltas",
    "conversation",
    "fold",
    "initial",
    "tool_answer",
    "turn_messages",
    "was_asked",
    "without_stand_ins",
]
