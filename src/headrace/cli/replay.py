"""`headrace replay`: a run again as it was, at the pace its records were written."""

import argparse
import asyncio

from headrace.cli.answer import AnswerView
from headrace.cli.reach import client_for
from headrace.cli.run import verdict
from headrace.cli.terminal import StatusLine
from headrace.client import Item, Snapshot
from headrace.errors import ConfigError


def main(options: argparse.Namespace) -> int:
    if options.speed < 0:
        raise ConfigError("--speed is negative.", hint="1 is as it was, 2 twice as fast, 0 does not wait.")
    return asyncio.run(replay(options))


async def replay(options: argparse.Namespace) -> int:
    async with client_for(options) as client:
        run = client.run(options.run)
        with StatusLine() as status:
            view = AnswerView(status)
            last: Item | None = None
            async for item in run.events(chunk="token"):
                await asyncio.sleep(pause(last, item, options.speed))
                view.take(item)
                view.refresh(run.state)
                last = item
        view.finish(run.state)
    return verdict(run.state)


def pause(last: Item | None, item: Item, speed: float) -> float:
    """Seconds between two records of the past, at a speed."""
    if last is None or isinstance(last, Snapshot) or isinstance(item, Snapshot) or speed == 0:
        return 0.0
    return max(0, item.ts - last.ts) / 1000 / speed
