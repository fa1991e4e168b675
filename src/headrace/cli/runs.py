"""`headrace runs`: the latest, newest first."""

import argparse
import asyncio
import sys
import time

import msgspec

from headrace.cli.reach import client_for
from headrace.cli.terminal import clean
from headrace.client import RunInfo


def main(options: argparse.Namespace) -> int:
    return asyncio.run(runs(options))


async def runs(options: argparse.Namespace) -> int:
    async with client_for(options) as client:
        rows = await client.runs(limit=options.limit)
    for row in rows:
        sys.stdout.write((msgspec.json.encode(row).decode() if options.json else line(row)) + "\n")
    if not rows and not options.json:
        print("There are no runs yet.", file=sys.stderr)
    return 0


def line(row: RunInfo) -> str:
    """Columns: id, status, when, how long, records, title."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.created_ts / 1000))
    took = f"{(row.ended_ts - row.created_ts) / 1000:.1f} s" if row.ended_ts else "…"
    title = clean(" ".join(row.title.split()))[:60]
    return f"{row.run_id}  {row.status:<13}  {when}  {took:>8}  {row.seq:>6}  {row.agent}: {title}"
