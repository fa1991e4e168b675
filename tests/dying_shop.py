"""The shop of docs/durability.md, on a server that dies when its first charge is made and not yet recorded.

`shop.py`, the page's code, lies in the working directory, and so does what the deaths leave behind.
"""

import os
import signal
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from headrace import Agent, App, ToolContext
from headrace.engine.port import ModelRequest, ToolCallPart
from headrace.engine.scripted import Script, ScriptedEngine
from headrace.messages import ToolSpec
from headrace.tools.port import Tool

CALLS = Path("calls")


class Deadly:
    """A tool that kills its process in the doubtful window of the first call. Each call writes down its id."""

    def __init__(self, tool: Tool) -> None:
        self._tool = tool

    @property
    def spec(self) -> ToolSpec:
        return self._tool.spec

    def validate(self, arguments: str) -> dict[str, Any]:
        return self._tool.validate(arguments)

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        result = await self._tool.call(arguments, context)
        if written_down(context.call_id) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return result


def written_down(call_id: str) -> int:
    """How many calls there have been, this one included."""
    with CALLS.open("a+") as calls:
        calls.write(f"{call_id}\n")
        calls.seek(0)
        return len(calls.readlines())


def script(request: ModelRequest) -> Script:
    if any(message.role == "tool" for message in request.messages):
        return "Done."
    return [ToolCallPart(index=0, name="charge", arguments='{"customer":"Ada","cents":240}')]


app = App(Agent("shop", "Charge.", engine=ScriptedEngine(script), tools=[Deadly(import_module("shop").charge)]))
