"""Headrace serves AI agents in real time: a run lives in a log, not in a connection.

What an author of agents needs is here; each name is imported when it is first asked for, so that `import headrace`
itself costs nothing.
"""

from importlib import import_module

TYPE_CHECKING = False  # type checkers take it for true; importing `typing` would be most of the cost

if TYPE_CHECKING:
    from headrace.agent.app import App as App
    from headrace.agent.loop import Agent as Agent
    from headrace.agent.own import as_agent as as_agent
    from headrace.agent.port import RunContext as RunContext
    from headrace.messages import Message as Message
    from headrace.tools.function import tool as tool
    from headrace.tools.port import ToolContext as ToolContext
    from headrace.workflow.run import Workflow as Workflow

__version__ = "0.1.0"

_HOMES = {
    "Agent": "headrace.agent.loop",
    "App": "headrace.agent.app",
    "Message": "headrace.messages",
    "RunContext": "headrace.agent.port",
    "ToolContext": "headrace.tools.port",
    "Workflow": "headrace.workflow.run",
    "as_agent": "headrace.agent.own",
    "tool": "headrace.tools.function",
}

__all__ = ["Agent", "App", "Message", "RunContext", "ToolContext", "Workflow", "__version__", "as_agent", "tool"]


if not TYPE_CHECKING:  # or a type checker would take any name for one of ours

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'headrace' has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
