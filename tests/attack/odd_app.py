"""What the shutdown attack serves: an agent that cannot be stopped, by a server with little patience."""

import asyncio
import contextlib

from headrace import server
from headrace.agent.app import App
from headrace.agent.port import RunContext
from headrace.events import RunFinished, TextDelta

server.HURRY_S = 0.2


class Deaf:
    name = "deaf"
    description = "for tests"
    needs_engine = False
    resumable = False

    async def run(self, context: RunContext) -> RunFinished:
        context.emit(TextDelta(text="never mind"))
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()


app = App(Deaf())
