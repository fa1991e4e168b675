"""`headrace replicas`: how the model servers are doing; `drain` takes one out of service, `resume` brings it back.

The exit code says whether the wish has come true within `--wait`, so that `headrace replicas drain NAME --wait 600 &&
systemctl stop …` stops only a server that has no work.
"""

import argparse
import asyncio
import math
import sys
import time
from typing import Any

import msgspec

from headrace.cli.arguments import DEFAULT_URL
from headrace.cli.terminal import clean
from headrace.client.http import Answer, Http
from headrace.errors import ConfigError

_WAITS = {"drain": 0.0, "resume": 10.0}  # seconds; to be drained may take as long as an answer
_TURN_S = 20  # seconds of one request that waits: shorter than the client's patience with an answer


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A replica, as the server shows it."""

    name: str
    model: str
    state: str
    active: int
    size: int
    draining: bool
    waiting: int


class _Listed(msgspec.Struct, frozen=True):
    replicas: list[Row]


def main(options: argparse.Namespace) -> int:
    return asyncio.run(replicas(options))


async def replicas(options: argparse.Namespace) -> int:
    http = Http(options.url or DEFAULT_URL, api_key=options.api_key, patience=10.0)
    try:
        if options.action == "list":
            _show(await http.request("GET", "/v1/replicas"), json=options.json)
            return 0
        if options.name is None:
            raise ConfigError(f"{options.action} needs a name.", hint="`headrace replicas` lists the names.")
        return await _told(http, options)
    finally:
        await http.close()


async def _told(http: Http, options: argparse.Namespace) -> int:
    """0 once the replica is where it was told to be. Without --wait, a drain that has begun is enough."""
    within = _WAITS[options.action] if options.wait is None else options.wait
    if not 0 <= within < math.inf:
        raise ConfigError(f"--wait {within:g} is no number of seconds.", hint="Give 0 or more.")
    body: dict[str, Any] = {"replica": options.name}
    if options.force:
        body["force"] = True
    until = time.monotonic() + within
    while True:
        left = max(0, math.ceil(until - time.monotonic()))
        query = {"wait": str(min(left, _TURN_S))}
        answer = await http.request("POST", f"/v1/replicas/{options.action}", body=body, query=query)
        if answer.status == 200 or left <= _TURN_S:
            break
    _show(answer, json=options.json)
    return int(answer.status != 200 and within > 0)


def _show(answer: Answer, *, json: bool) -> None:
    for row in answer.read(_Listed).replicas:
        sys.stdout.write((msgspec.json.encode(row).decode() if json else line(row)) + "\n")


def line(row: Row) -> str:
    """Columns: name, model, state, answers of places, waiting."""
    state = row.state if not row.draining else "draining" if row.active else "drained"
    waiting = f"  {row.waiting} waiting" if row.waiting else ""
    return f"{clean(row.name)}  {clean(row.model)}  {state:<9}  {row.active} of {row.size}{waiting}"
