"""What a run is, as a function of its records: `values.py` what, `reducer.py` how, `progress.py` how
far it gets, `conversation.py` for a model."""

from headrace.state.conversation import conversation, tool_answer, turn_messages, was_asked, without_stand_ins
from headrace.state.progress import crashes_so_far, gets_further
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
    "crashes_so_far",
    "fold",
    "gets_further",
    "initial",
    "tool_answer",
    "turn_messages",
    "was_asked",
    "without_stand_ins",
]
