"""What the tests of several instances serve: agents that speak, act and ask slowly enough to be killed in between."""

import asyncio
import os

from headrace import Agent, ToolContext, tool
from headrace.agent.app import App
from headrace.engine.port import ModelRequest, Text, ToolCallPart
from headrace.engine.scripted import Hang, Script, ScriptedEngine

LEDGER = os.environ.get("LEDGER", "")
WORDS = [f"词{number}🌊 " for number in range(60)]


def _write_down(what: str) -> None:
    """One short O_APPEND write: whole or not at all."""
    file = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{what}\n".encode())
    os.close(file)


@tool(effect="once")
async def send_mail(to: str, context: ToolContext) -> str:
    """Send a mail."""
    _write_down(context.call_id)
    await asyncio.sleep(0.02)
    return f"sent to {to}"


@tool(approval=True)
async def delete(name: str) -> str:
    """Delete something."""
    _write_down(name)
    return f"{name} is gone"


@tool(effect="idempotent")
async def crash() -> str:
    """Crash."""
    _write_down("crash")
    os._exit(9)


def _answers(request: ModelRequest) -> list[str]:
    return [message.content for message in request.messages if message.role == "tool"]


def _call(name: str, arguments: str) -> ToolCallPart:
    return ToolCallPart(index=0, call_id=None, name=name, arguments=arguments)


def _mail(request: ModelRequest) -> Script:
    words = [Text(word) for word in WORDS]
    return words if _answers(request) else [Text("One moment. "), _call("send_mail", '{"to":"ada"}')]


def _ask(request: ModelRequest) -> Script:
    known = _answers(request)
    return known[0] if known else [_call("delete", '{"name":"x"}')]


def _wait(request: ModelRequest) -> Script:
    asked = request.messages[-1].content
    return "Bonjour." if asked == "In French." else [Text("Hello"), Hang()]


def _crash(request: ModelRequest) -> Script:
    return [_call("crash", "{}")]


app = App(
    Agent(name="mailer", engine=ScriptedEngine(_mail, rate=60.0), tools=[send_mail]),
    Agent(name="asking", engine=ScriptedEngine(_ask), tools=[delete]),
    Agent(name="waiting", engine=ScriptedEngine(_wait)),
    Agent(name="crashing", engine=ScriptedEngine(_crash), tools=[crash]),
)

upstream = App(Agent(name="upstream"))
"""Its model is the server at `engine.url`."""
