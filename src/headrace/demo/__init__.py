"""The demo: `headrace serve` without an argument serves `headrace.demo:app`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.agent.app import App
    from headrace.demo.agent import DocsAgent

    agent: DocsAgent
    app: App

__all__ = ["agent", "app"]

_made: dict[str, Any] = {}


def __getattr__(name: str) -> Any:
    """Made when first asked for: the command line imports this package for its questions alone, too."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not _made:
        _make()
    return _made[name]


def _make() -> None:
    from headrace.agent.app import App
    from headrace.demo.agent import DocsAgent

    _made["agent"] = DocsAgent()
    _made["app"] = App(_made["agent"])
