"""`headrace cancel`: stop a run, and say when it has stopped."""

import argparse
import asyncio

from headrace.cli.reach import client_for


def main(options: argparse.Namespace) -> int:
    return asyncio.run(cancel(options))


async def cancel(options: argparse.Namespace) -> int:
    async with client_for(options) as client:
        run = client.run(options.run)
        before = await run.cancel("headrace cancel")
        state = await run.result()
        print(f"{run.id} was already {state.status}." if before.ended else f"{run.id} is {state.status}.")
    return 0
