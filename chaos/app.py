"""The Headrace under test: an agent whose model says what the plan says, and whose tools count themselves.

Served by `headrace serve chaos.app:app`. The model is named for its process, so that records tell who worked.
"""

import asyncio
import os
from collections.abc import Iterator

from chaos.ledger import write_down
from chaos.plan import PlannedTurn, RunPlan, labels, next_turn, read_question
from headrace import Agent, ToolContext, tool
from headrace.agent.app import App
from headrace.engine.port import ModelRequest, Text, ToolCallPart
from headrace.engine.scripted import Pause, ScriptedEngine, Step


@tool(effect="none")
async def look(label: str, ms: int, context: ToolContext) -> str:
    """Look something up."""
    return await _work("look", label, ms, context)


@tool(effect="idempotent")
async def put(label: str, ms: int, context: ToolContext) -> str:
    """Write a value."""
    return await _work("put", label, ms, context)


@tool(effect="once")
async def send(label: str, ms: int, context: ToolContext) -> str:
    """Send a mail."""
    return await _work("send", label, ms, context)


async def _work(name: str, label: str, ms: int, context: ToolContext) -> str:
    write_down(name, label, context.call_id)
    for step in range(2):
        context.progress({"step": step})
        await asyncio.sleep(ms / 2000)
    return f"{name} {label} is done 完成"


def script(request: ModelRequest) -> Iterator[Step]:
    asked = labels(call.arguments for message in request.messages for call in message.tool_calls)
    plan = read_question(next(message.content for message in request.messages if message.role == "user"))
    return _steps(plan, next_turn(plan, asked))


def _steps(plan: RunPlan, turn: PlannedTurn) -> Iterator[Step]:
    for piece in turn.pieces:
        yield Pause(1 / plan.rate)
        yield Text(piece)
    for index, call in enumerate(turn.calls):
        yield ToolCallPart(index=index, call_id=None, name=call.tool, arguments=call.arguments)


engine = ScriptedEngine(script, model=f"scripted-{os.getpid()}")
app = App(Agent(name="chaos", instructions="Say your plan.", engine=engine, tools=[look, put, send], max_turns=64))
