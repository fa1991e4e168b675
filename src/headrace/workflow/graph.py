"""A workflow's shape, and what may run next. Pure: nothing here waits.

A node starts the moment all it needs has a result (its own or its fallback's). When something it needs has failed or
was skipped it is skipped itself, with the reason; its siblings go on.
"""

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Literal

import msgspec

from headrace.errors import ConfigError
from headrace.messages import Effect

NodeStatus = Literal["running", "completed", "fallback", "failed", "skipped"]
Progress = Mapping[str, NodeStatus]
"""The nodes that have been started or settled."""

_HAS_RESULT = ("completed", "fallback")


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """`deadline` is in seconds from the node's start. `effect` says what running it twice does (see `messages`)."""

    name: str
    needs: tuple[str, ...] = ()
    deadline: float | None = None
    effect: Effect = "none"


class Graph:
    """Nodes in an order in which each comes after what it needs.

    Raises:
        ConfigError: two nodes of one name, a need that is no node, a circle, a deadline that leaves no time.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        given = list(nodes)
        by_name = {node.name: node for node in given}
        if len(by_name) != len(given):
            names = [node.name for node in given]
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"Two nodes are called {twice}.", hint="Give one of them another name.")
        for node in given:
            _check(node, by_name)
        self.nodes: Mapping[str, Node] = {name: by_name[name] for name in _in_order(given)}


def ready(graph: Graph, progress: Progress) -> tuple[str, ...]:
    """The nodes to start now."""
    return tuple(
        node.name
        for node in graph.nodes.values()
        if node.name not in progress and all(progress.get(need) in _HAS_RESULT for need in node.needs)
    )


def doomed(graph: Graph, progress: Progress) -> dict[str, str]:
    """The nodes that can never start, each with the need that is to blame, in an order fit for recording."""
    lost: dict[str, str] = {}
    for node in graph.nodes.values():
        blame = next((n for n in node.needs if progress.get(n) in ("failed", "skipped") or n in lost), None)
        if node.name not in progress and blame is not None:
            lost[node.name] = blame
    return lost


def _check(node: Node, known: Mapping[str, Node]) -> None:
    for need in node.needs:
        if need not in known:
            raise ConfigError(
                f"The node {node.name} needs {need}, which is no node.", hint=f"The nodes are: {', '.join(known)}."
            )
    if node.deadline is not None and node.deadline <= 0:
        raise ConfigError(f"The node {node.name} has a deadline of {node.deadline} s.", hint="Give seconds above 0.")


def _in_order(nodes: Iterable[Node]) -> list[str]:
    try:
        return list(TopologicalSorter({node.name: node.needs for node in nodes}).static_order())
    except CycleError as exc:
        circle = " → ".join(exc.args[1])
        raise ConfigError(f"Nodes need each other in a circle: {circle}.", hint="Take one need away.") from exc
