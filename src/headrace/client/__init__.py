"""The Python client: start runs, follow them through any broken connection, steer and stop them.

from headrace.client import Client

with Client("http://127.0.0.1:8321") as client:
    for piece in client.start("What is a run?").text():
        print(piece, end="", flush=True)
"""

from headrace.client.aio import AsyncClient
from headrace.client.frames import Snapshot
from headrace.client.listing import AgentInfo, RunInfo, Thread
from headrace.client.run import Run
from headrace.client.session import Item
from headrace.client.sync import Client
from headrace.client.sync import Run as SyncRun
from headrace.client.text import Retracted

__all__ = [
    "AgentInfo",
    "AsyncClient",
    "Client",
    "Item",
    "Retracted",
    "Run",
    "RunInfo",
    "Snapshot",
    "SyncRun",
    "Thread",
]
