"""What a run's terminal record says. Pure: what the agent returned, raised, or took down with it comes in."""

import msgspec

from headrace import events as e
from headrace.errors import AgentFailed, HeadraceError, Poison
from headrace.state import RunState

CANCELLED = e.RunFinished(status="cancelled", finish_reason="cancelled")
"""Its output is filled in when it is stored: until then the agent may still be cleaning up."""


def finished(returned: object) -> e.RunFinished:
    """What an agent has returned.

    Raises:
        AgentFailed: the log cannot hold it.
    """
    if not isinstance(returned, e.RunFinished):
        raise AgentFailed(
            f"The agent returned {type(returned).__name__}.", hint="It must return a RunFinished, or raise."
        )
    try:
        return msgspec.json.decode(msgspec.json.encode(returned), type=e.RunFinished)
    except (msgspec.ValidationError, TypeError, ValueError) as exc:
        raise AgentFailed(f"The agent returned a RunFinished that cannot be recorded: {exc}.") from exc


def errored(error: HeadraceError) -> e.RunErrored:
    hint = None if error.hint is None else _printable(error.hint)
    return e.RunErrored(code=error.code, message=_printable(error.message), retryable=error.retryable, hint=hint)


def poison(state: RunState, crashes: int) -> Poison:
    """`state` is the run as its last worker left it."""
    return Poison(
        f"This run has lost {crashes} workers in a row without getting any further, the last one {_where(state)}.",
        hint="The server's log, or the system's, says what ended the process there. Start the run again once it is"
        " fixed, or raise run.max_crashes if the run was not to blame.",
    )


def _where(state: RunState) -> str:
    """What was under way."""
    tools = [call.name for call in state.tool_calls if call.arguments is not None and not call.done]
    if tools:
        return f"while {' and '.join(tools)} ran"
    nodes = [node.node for node in state.nodes if node.status == "running"]
    if nodes:
        return f"in the node {' and '.join(nodes)}"
    if not state.turns:
        return "before its first turn"
    last = state.turns[-1]
    return f"{'during' if last.finish_reason is None else 'after'} turn {last.turn}"


def _printable(text: object) -> str:
    """An agent's error may hold anything; a record holds Unicode."""
    return str(text).encode("utf-8", "backslashreplace").decode()
