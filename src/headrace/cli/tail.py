"""`headrace tail`: a run's records, one a line."""

import argparse
import asyncio
import sys

import msgspec

from headrace.cli.reach import client_for
from headrace.cli.terminal import clean
from headrace.client import Item, Snapshot
from headrace.events import event_type


def main(options: argparse.Namespace) -> int:
    return asyncio.run(tail(options))


async def tail(options: argparse.Namespace) -> int:
    show = as_json if options.json or not sys.stdout.isatty() else as_text
    async with client_for(options) as client:
        async for item in client.run(options.run).events(options.after, chunk="token"):
            sys.stdout.write(show(item) + "\n")
            sys.stdout.flush()
    return 0


def as_json(item: Item) -> str:
    """`{run_id, seq, ts, type, data}`, the record of PROTOCOL.md; a snapshot is `{type, data}`."""
    if isinstance(item, Snapshot):
        return msgspec.json.encode({"type": "run.snapshot", "data": item}).decode()
    data = msgspec.to_builtins(item.event)
    kind = data.pop("type")
    return msgspec.json.encode(
        {"run_id": item.run_id, "seq": item.seq, "ts": item.ts, "type": kind, "data": data}
    ).decode()


def as_text(item: Item) -> str:
    """For people: seq, type, data."""
    if isinstance(item, Snapshot):
        return f"{item.as_of_seq:>6}  {'run.snapshot':<18} {item.state.status}: {clean(item.state.text)!r}"
    data = msgspec.to_builtins(item.event)
    del data["type"]
    return f"{item.seq:>6}  {event_type(item.event):<18} {clean(msgspec.json.encode(data).decode())}"
