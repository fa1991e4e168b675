"""Answers by a capable model: the passages in front of it, and tools that it calls itself."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from headrace.agent.loop import Agent
from headrace.agent.port import RunContext
from headrace.demo.grade import NOT_IN_DOCUMENTS
from headrace.demo.index import Found
from headrace.demo.library import Library
from headrace.demo.steps import Steps, citation
from headrace.engine.port import Engine
from headrace.errors import AgentFailed, HeadraceError
from headrace.events import RunFinished
from headrace.tools.builtin import calculator, clock
from headrace.tools.function import FunctionTool, tool

INSTRUCTIONS = f"""\
You answer questions about Headrace, in the language of the question, briefly and directly.
Say only what the passages of its documents say. If they don't answer, search the documents in other words; if that
finds nothing either, answer exactly: {NOT_IN_DOCUMENTS["en"]} (in Chinese: {NOT_IN_DOCUMENTS["zh"]})
Use the calculator for arithmetic and the clock for the time."""

_LATE = "The documents could not be searched in time. Say so, and answer from what you know."
_SHOWN = 6


async def answer_freely(
    context: RunContext, engine: Engine, library: Library, *, name: str, deadline: float
) -> RunFinished:
    """Run the workflow with an Agent as its last step. Raises what the Agent raises."""
    steps = Steps(context.question, library, deadline=deadline)
    failures: list[HeadraceError] = []

    async def answer(_: Any, inputs: Mapping[str, Any]) -> RunFinished:
        _intent, found = steps.read(inputs)
        _cite(context, found)
        tools = [calculator, clock, search_tool(context, library)] if engine.capabilities.tools else []
        agent = Agent(name, INSTRUCTIONS, engine=engine, tools=tools, tail=lambda _: passages_for(found))
        try:
            return await agent.run(context)
        except HeadraceError as error:
            failures.append(error)
            raise

    outcome = (await steps.answer_with(answer).run(context))[steps.answer]
    if outcome.status == "completed":
        return msgspec.convert(outcome.result, RunFinished)
    raise failures[0] if failures else AgentFailed(outcome.error.message if outcome.error else "The answer failed.")


def passages_for(found: Found | None) -> str:
    """What the model reads beside the question."""
    if found is None:
        return _LATE
    shown = "\n".join(f"[{hit.passage.page}] {hit.passage.in_context}" for hit in found.hits[:_SHOWN])
    return f"Passages of the documents:\n{shown}"


def search_tool(context: RunContext, library: Library) -> FunctionTool:
    """The search as a tool of one run: what it finds is cited in that run."""

    @tool(effect="none", timeout=10)
    async def search_documents(query: Annotated[str, "what to look for, in a few words"]) -> list[dict[str, str]]:
        """Search the documents of Headrace for passages."""
        found = await library.search(query, limit=_SHOWN)
        _cite(context, found)
        return [{"page": h.passage.page, "heading": h.passage.heading, "text": h.passage.text} for h in found.hits]

    return search_documents


def _cite(context: RunContext, found: Found | None) -> None:
    known = {source.id for source in context.state.sources}
    for hit in found.hits if found and found.relevant else ():
        if hit.passage.id not in known:
            context.emit(citation(hit))
