"""What the kill test serves: agents whose tools write down every execution, each write before anything else."""

import asyncio
import os

from headrace import Agent, ToolContext, tool
from headrace.agent.app import App
from headrace.engine.port import ModelRequest, Text, ToolCallPart
from headrace.engine.scripted import Hang, Script, ScriptedEngine

LEDGER = os.environ.get("LEDGER", "")


def _write_down(name: str, call_id: str) -> None:
    """One short O_APPEND write: whole or not at all, also when the process dies with the next instruction."""
    file = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{name} {call_id}\n".encode())
    os.close(file)


@tool(effect="once")
async def send_mail(to: str, context: ToolContext) -> str:
    """Send a mail."""
    _write_down("once", context.call_id)
    await asyncio.sleep(0.03)
    return f"sent to {to}"


@tool(effect="idempotent")
async def put(key: str, context: ToolContext) -> str:
    """Write a value."""
    _write_down("idempotent", context.call_id)
    for step in range(3):
        context.progress({"step": step})
        await asyncio.sleep(0.01)
    return f"{key} is written"


def _script(request: ModelRequest) -> Script:
    """Some words, two calls at once, more words, one call, words. Which turn it is, the conversation tells."""
    answered = sum(message.role == "tool" for message in request.messages)
    question = request.messages[0].content if request.messages else ""
    words = [Text(f"{answered}.{number} ") for number in range(12)]
    if answered == 0:
        return [*words, _call(0, "send_mail", f'{{"to":"{question}"}}'), _call(1, "put", '{"key":"a"}')]
    if answered == 2:
        return [*words, _call(0, "send_mail", '{"to":"again"}')]
    return words


def _call(index: int, name: str, arguments: str) -> ToolCallPart:
    return ToolCallPart(index=index, call_id=None, name=name, arguments=arguments)


def _waiting_script(request: ModelRequest) -> Script:
    return [Text("One moment. "), Hang()]


engine = ScriptedEngine(_script, rate=300.0)
STORY = " ".join(f"word-{number}" for number in range(400))
app = App(
    Agent(name="mailer", instructions="Send mails.", engine=engine, tools=[send_mail, put]),
    Agent(name="talker", instructions="Talk.", engine=ScriptedEngine(STORY, rate=300.0)),
)
waiting = App(Agent(name="mailer", instructions="Wait.", engine=ScriptedEngine(_waiting_script)))
"""The same agent by name, whose model never says more: another build of the app goes on with its runs."""
