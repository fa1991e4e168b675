"""Runs a graph of nodes, each started the moment its needs are met.

    flow = Workflow("answer")

    @flow.node(deadline=0.5, fallback=[])
    async def retrieve(context, inputs):
        return await index.search(context.question)

    @flow.node(needs=("retrieve",))
    async def answer(context, inputs):
        ...

    nodes = await flow.run(context)
    nodes["answer"].result

A node gets the run's context, so it can emit deltas, and the results of what it needs by name. A result is JSON, and
dependants get it as JSON reads back, so that a run which restarts gives them the same. Sync nodes run in threads.
Node names are unique within a run.
"""

import asyncio
import functools
import inspect
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from headrace.errors import AgentFailed, DeadlineExceeded, HeadraceError, LogError, UnknownOutcome
from headrace.events import Event, NodeFinished, NodeStarted, ToolFault
from headrace.messages import Effect
from headrace.resilience.group import Group
from headrace.state import Node as Outcome
from headrace.state import RunState
from headrace.tools.threads import run_in_thread
from headrace.workflow.graph import Graph, Node, doomed, ready

_log = logging.getLogger("headrace.workflow")


class Context(Protocol):
    """What a workflow needs of a run; `agent.port.RunContext` has it."""

    @property
    def state(self) -> RunState: ...

    def emit(self, event: Event) -> None: ...

    async def commit(self, *events: Event) -> None: ...

    def time_left(self) -> float | None: ...


Body = Callable[[Any, Mapping[str, Any]], Any]
"""A node's function: (context, inputs) to its result; async or not."""

_NO_FALLBACK = object()


class Workflow:
    """See above. The graph is checked when it is first used, so nodes may be written down in any order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._all: list[Node] = []
        self._bodies: dict[str, Body] = {}
        self._fallbacks: dict[str, Any] = {}
        self._graph: Graph | None = None

    def node(
        self,
        *,
        name: str | None = None,
        needs: tuple[str, ...] = (),
        deadline: float | None = None,
        fallback: Any = _NO_FALLBACK,
        effect: Effect = "none",
    ) -> Callable[[Body], Body]:
        """Make a function a node. `fallback` answers when it fails or is late: a JSON value or a function like it."""

        def add(body: Body) -> Body:
            node = Node(name=name or body.__name__, needs=tuple(needs), deadline=deadline, effect=effect)
            self._all.append(node)
            self._bodies[node.name] = body
            if fallback is not _NO_FALLBACK:
                self._fallbacks[node.name] = fallback
            self._graph = None
            return body

        return add

    @property
    def graph(self) -> Graph:
        """Raises ConfigError when the nodes make no graph."""
        if self._graph is None:
            self._graph = Graph(self._all)
        return self._graph

    async def run(self, context: Context) -> dict[str, Outcome]:
        """Run to the end and return every node's outcome by name. A failed node raises nothing: its outcome says so."""
        return await _Run(self.graph, self._bodies, self._fallbacks, context).to_end()


class _Run:
    def __init__(
        self, graph: Graph, bodies: Mapping[str, Body], fallbacks: Mapping[str, Any], context: Context
    ) -> None:
        self._graph = graph
        self._bodies = bodies
        self._fallbacks = fallbacks
        self._context = context
        known = [node for node in context.state.nodes if node.node in graph.nodes]
        self._outcomes = {node.node: node for node in known if node.status != "running"}
        self._begun = {node.node for node in known if node.status == "running"}
        self._progress: dict[str, Any] = {name: node.status for name, node in self._outcomes.items()}

    async def to_end(self) -> dict[str, Outcome]:
        async with Group() as group:
            self._advance(group)
        return {name: self._outcomes[name] for name in self._graph.nodes}

    def _advance(self, group: Group) -> None:
        """Skip what can never start and start what can. Called once at first and after every outcome."""
        for name, blame in doomed(self._graph, self._progress).items():
            why = f"{blame}, which it needs, {self._fate(blame)}."
            self._settle(name, 0.0, status="skipped", error=ToolFault(code=AgentFailed.code, message=why))
        for name in ready(self._graph, self._progress):
            self._progress[name] = "running"
            group.create_task(self._one(self._graph.nodes[name], group), name=f"node {name}")

    def _fate(self, name: str) -> str:
        return "failed" if self._progress.get(name) == "failed" else "was skipped"

    async def _one(self, node: Node, group: Group) -> None:
        inputs = {need: self._outcomes[need].result for need in node.needs}
        began = time.monotonic()
        lost = node.name in self._begun and node.effect == "once"
        self._context.emit(NodeStarted(node=node.name, needs=node.needs))
        if node.effect != "none":
            await self._context.commit()  # a crash from here on finds that it may have taken effect
        error = _unknown(node) if lost else None
        result = None
        if error is None:
            result, error = await self._attempt(node, self._bodies[node.name], inputs, self._seconds(node))
        status = "completed"
        if error is not None:
            status, result, error = await self._fall_back(node, inputs, error)
        self._settle(node.name, (time.monotonic() - began) * 1000, status=status, result=result, error=error)
        if node.effect != "none":
            await self._context.commit()
        self._advance(group)

    async def _fall_back(
        self, node: Node, inputs: Mapping[str, Any], error: ToolFault
    ) -> tuple[str, Any, ToolFault | None]:
        if node.name not in self._fallbacks:
            return "failed", None, error
        fallback = self._fallbacks[node.name]
        body = fallback if callable(fallback) else lambda context, inputs: fallback
        result, second = await self._attempt(node, body, inputs, self._context.time_left())
        if second is None:
            return "fallback", result, error
        both = f"{error.message} Its fallback: {second.message}"
        return "failed", None, msgspec.structs.replace(error, message=both)

    async def _attempt(
        self, node: Node, body: Body, inputs: Mapping[str, Any], seconds: float | None
    ) -> tuple[Any, ToolFault | None]:
        """A JSON result, or why there is none."""
        scope = asyncio.timeout(seconds)
        try:
            async with scope:
                return _as_json(node, await _call(body, self._context, inputs)), None
        except LogError:
            raise  # the run is no longer ours to write
        except HeadraceError as exc:
            return None, ToolFault(code=exc.code, message=exc.message, hint=exc.hint)
        except TimeoutError as exc:
            if scope.expired():
                late = f"{node.name} did not finish within {seconds:.3g} s."
                return None, ToolFault(code=DeadlineExceeded.code, message=late)
            return None, _failed(node, exc)
        except asyncio.CancelledError as exc:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return None, _failed(node, exc)
        except Exception as exc:
            return None, _failed(node, exc)

    def _seconds(self, node: Node) -> float | None:
        limits = [seconds for seconds in (node.deadline, self._context.time_left()) if seconds is not None]
        return min(limits, default=None)

    def _settle(self, name: str, ms: float, *, status: Any, result: Any = None, error: ToolFault | None = None) -> None:
        ms = round(ms, 3)
        needs = self._graph.nodes[name].needs
        self._outcomes[name] = Outcome(node=name, needs=needs, status=status, ms=ms, result=result, error=error)
        self._progress[name] = status
        self._context.emit(NodeFinished(node=name, status=status, ms=ms, result=result, error=error))


async def _call(body: Body, context: Context, inputs: Mapping[str, Any]) -> Any:
    if inspect.iscoroutinefunction(body):
        return await body(context, inputs)
    result = await run_in_thread(functools.partial(body, context, inputs), name="headrace-node")
    return await result if inspect.isawaitable(result) else result


def _as_json(node: Node, result: Any) -> Any:
    try:
        return msgspec.json.decode(msgspec.json.encode(result))
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise AgentFailed(
            f"{node.name} returned a {type(result).__name__} that JSON cannot carry: {exc}",
            hint="Return numbers, texts, lists, dicts, dataclasses or structs.",
        ) from exc


def _unknown(node: Node) -> ToolFault:
    return ToolFault(
        code=UnknownOutcome.code,
        message=f"The server stopped while {node.name} was running: whether it took effect is not known.",
        hint="It was not run again.",
    )


def _failed(node: Node, exc: BaseException) -> ToolFault:
    _log.warning("node %s failed", node.name, exc_info=exc)
    said = str(exc).encode("utf-8", "backslashreplace").decode()[:2000]
    return ToolFault(code=AgentFailed.code, message=f"{type(exc).__name__}: {said}" if said else type(exc).__name__)
