"""Headrace's users: its SSE client, its WebSocket client, and a plain EventSource, each as it comes."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from types import TracebackType

import aiohttp

from chaos.event_source import EventSource, ServerSent, start
from chaos.plan import RunPlan
from chaos.system import Seen
from headrace.client import AsyncClient, Item, Snapshot
from headrace.client.followed import Followed
from headrace.client.socket import Socket
from headrace.events import (
    TERMINAL_TYPES,
    TERMINALS,
    Record,
    RunRecovered,
    TextDelta,
    TextRetracted,
    ThinkingDelta,
    TurnStarted,
    event_type,
)
from headrace.wire.codec import decode_record, encode_record, frame_data

KINDS = ("sse", "ws", "plain")
_SOCKETS = 4
"""Connections that the WebSocket clients share, so that each carries several runs."""
_PATIENCE_S = 60.0


class Clients:
    """All clients of one campaign. `async with Clients(url)`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stack = AsyncExitStack()
        self._followed: dict[str, Followed] = {}

    async def __aenter__(self) -> "Clients":
        self._http = await self._stack.enter_async_context(aiohttp.ClientSession(connector=_connector()))
        self._client = await self._stack.enter_async_context(AsyncClient(self._url, patience=_PATIENCE_S))
        self._sockets = [await self._stack.enter_async_context(self._client.connect()) for _ in range(_SOCKETS)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def begin(self, client: int, plan: RunPlan) -> str:
        kind = KINDS[client % len(KINDS)]
        if kind == "sse":
            return (await self._client.start(plan.question, idempotency_key=plan.name)).id
        if kind == "ws":
            followed = await self._socket(plan.name).start(plan.question, idempotency_key=plan.name)
            self._followed[followed.id] = followed
            return followed.id
        body = json.dumps({"input": plan.question}).encode()
        return str((await start(self._http, f"{self._url}/v1/runs", body, plan.name))["run_id"])

    async def follow(self, run_id: str, kind: str) -> AsyncIterator[Seen]:
        """Ours merge what has piled up; the plain one asks for every record."""
        if kind == "plain":
            async for seen in self._plainly(run_id):
                yield seen
            return
        if kind == "sse":
            items = self._client.run(run_id).events()
        else:
            followed = self._followed.pop(run_id, None) or await self._socket(run_id).follow(run_id)
            items = followed.events()
        cursor = 0
        async with aclosing(items):
            async for item in items:
                yield seen_by_ours(item, cursor)
                cursor = item.as_of_seq if isinstance(item, Snapshot) else item.seq

    async def _plainly(self, run_id: str) -> AsyncIterator[Seen]:
        source = EventSource(self._http, f"{self._url}/v1/runs/{run_id}/events?chunk=token")
        async for event in source.events():
            yield seen_plainly(run_id, event)
            if event.event in TERMINAL_TYPES:
                return

    def _socket(self, name: str) -> Socket:
        return self._sockets[sum(name.encode()) % _SOCKETS]


def seen_by_ours(item: Item, cursor: int) -> Seen:
    """What our clients give out, after `cursor`. A merged delta follows the cursor without a gap, or they would have
    complained; whether its text is that of all the records is for the judge."""
    if isinstance(item, Snapshot):
        return Seen(seq=item.as_of_seq, kind="run.snapshot", at=time.time())
    merges = isinstance(item.event, TextDelta | ThinkingDelta)
    data = frame_data(encode_record(item.seq, item.ts, item.event))
    return _seen(item, data=data, at=time.time(), first=cursor + 1 if merges else 0)


def seen_plainly(run_id: str, event: ServerSent) -> Seen:
    if event.event == "run.snapshot":
        return Seen(seq=int(event.id), kind=event.event, at=time.time(), data=event.data)
    return _seen(_record(run_id, event), data=event.data, at=time.time())


def as_made(run_id: str, event: ServerSent) -> Seen:
    """The same with the time at which it was made."""
    record = _record(run_id, event)
    return _seen(record, data=event.data, at=record.ts / 1000)


def _record(run_id: str, event: ServerSent) -> Record:
    frame = f"id: {event.id}\nevent: {event.event}\ndata: ".encode() + event.data + b"\n\n"
    return decode_record(run_id, frame)


def _seen(record: Record, *, data: bytes, at: float, first: int = 0) -> Seen:
    event = record.event
    return Seen(
        seq=record.seq,
        first=first,
        kind=event_type(event),
        at=at,
        text=event.text if isinstance(event, TextDelta) else "",
        turn=event.turn if isinstance(event, TurnStarted | TextRetracted) else 0,
        terminal=isinstance(event, TERMINALS),
        worker=worker_of(record),
        data=data,
    )


def worker_of(record: Record) -> int:
    """The pid that a record tells: models are named for it, and so are workers."""
    if isinstance(record.event, TurnStarted):
        return int(record.event.model.rpartition("-")[2])
    if isinstance(record.event, RunRecovered):
        return int(record.event.worker.rpartition(":")[2])
    return 0


def _connector() -> aiohttp.TCPConnector:
    return aiohttp.TCPConnector(limit=0)
