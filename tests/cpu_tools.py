"""Tools for a process of their own: they must be importable by name."""

import os
import pathlib
import time

from headrace.tools.function import tool


@tool(cpu=True, effect="none")
def process_id() -> int:
    return os.getpid()


@tool(cpu=True, effect="none")
def fails(why: str) -> None:
    raise ValueError(why)


@tool(cpu=True, effect="none")
def dies() -> None:
    os._exit(7)


@tool(cpu=True, effect="none", timeout=60)
def spins(started: str) -> None:
    pathlib.Path(started).write_text(str(os.getpid()))
    while True:
        time.sleep(0.01)


@tool(cpu=True, effect="none")
def unpicklable() -> object:
    return lambda: None
