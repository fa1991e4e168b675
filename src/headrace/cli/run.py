"""`headrace run`: ask, and watch the answer come. Ctrl-C cancels the run and waits until it has stopped; a second
one leaves at once."""

import argparse
import asyncio
import logging
import sys

from headrace.cli import FAILED, INTERRUPTED, OK, complain
from headrace.cli.answer import AnswerView
from headrace.cli.reach import client_or_demo
from headrace.cli.terminal import StatusLine
from headrace.client import Run
from headrace.errors import InvalidRequest, RunError
from headrace.state import RunState

REFRESH_S = 0.1


def main(options: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.DEBUG if options.debug else logging.ERROR)
    return asyncio.run(ask(options))


async def ask(options: argparse.Namespace) -> int:
    question = sys.stdin.read() if options.question == "-" else options.question
    if not question.strip():
        raise InvalidRequest("The question is empty.", hint='For example: headrace run "What is a run?"')
    async with client_or_demo(options) as client:
        run = await client.start(question, options.agent, options.thread)
        try:
            return verdict(await show(run))
        except asyncio.CancelledError:  # Ctrl-C; another one breaks what follows
            print("\nStopping …", file=sys.stderr)
            await run.cancel("Ctrl-C")
            await run.result()
            return INTERRUPTED


async def show(run: Run) -> RunState:
    """Show a run until it ends."""
    with StatusLine() as status:
        view = AnswerView(status)
        drawing = asyncio.create_task(_keep_drawing(view, run, status))
        try:
            async for item in run.events():
                view.take(item)
        finally:
            drawing.cancel()
            await asyncio.wait([drawing])
    view.finish(run.state)
    return run.state


def verdict(state: RunState) -> int:
    """The exit code of how a run ended; what went wrong is said on standard error."""
    if state.error is not None:
        return complain(RunError(state.error.message, hint=state.error.hint)) or FAILED
    return FAILED if state.status == "cancelled" else OK


async def _keep_drawing(view: AnswerView, run: Run, status: StatusLine) -> None:
    while status.shown:
        view.refresh(run.state)
        await asyncio.sleep(REFRESH_S)
