"""Agents whose tool ends the process it runs in, after it has written that down."""

import os

from headrace import Agent, tool
from headrace.agent.app import App
from headrace.agent.port import RunContext
from headrace.engine.port import ModelRequest, ToolCallPart
from headrace.engine.scripted import Script, ScriptedEngine
from headrace.events import RunFinished, TextDelta


def _crash() -> str:
    file = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, b"crash\n")
    os._exit(9)


@tool(effect="idempotent")
async def crash() -> str:
    """Crash."""
    return _crash()


@tool(effect="once", name="crash")
async def crash_once() -> str:
    """Crash."""
    return _crash()


class Sudden:
    """Ends the process before anything it said could have been stored."""

    name = "sudden"
    description = "for tests"
    needs_engine = False
    resumable = True

    async def run(self, context: RunContext) -> RunFinished:
        context.emit(TextDelta(text="x"))
        return RunFinished(status="completed", output=_crash())


def _script(request: ModelRequest) -> Script:
    known = any(message.role == "tool" for message in request.messages)
    return "I do not know." if known else [ToolCallPart(index=0, call_id=None, name="crash", arguments="{}")]


app = App(
    Agent(name="again", engine=ScriptedEngine(_script), tools=[crash]),
    Agent(name="once", engine=ScriptedEngine(_script), tools=[crash_once]),
    Sudden(),
)
