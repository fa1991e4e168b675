"""Whether a run gets anywhere, or only takes one worker after the other down with it. Pure."""

from headrace import events as e
from headrace.state.values import RunState, Turn


def gets_further(event: e.Event) -> bool:
    """Whether work is done that no later worker repeats. What is only closed after a crash is none."""
    match event:
        case e.TurnFinished():
            return event.finish_reason != "error"
        case e.ToolResult():
            cut = event.error is not None and event.error.code == "tool_cancelled"
            return event.source != "unknown_outcome" and not cut
        case e.NodeFinished():
            return True
    return False


def crashes_after_text(state: RunState, turn: Turn) -> int:
    """The next worker would repeat text, unless the engine goes on with answers that were cut."""
    return 0 if turn.continued else state.crashes


def crashes_so_far(state: RunState) -> int:
    """How many workers in a row this run has had taken from it, once another one goes on: without any getting further,
    and without a release, which is how a worker leaves that is well."""
    return 0 if state.released else state.crashes + 1
