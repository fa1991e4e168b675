"""Follow one run over SSE until it ends, however often the link breaks. `session` decides, this waits and reads."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from urllib.parse import quote

import aiohttp

from headrace.client.frames import SNAPSHOT, Frame, read_record, read_seq, read_snapshot
from headrace.client.http import Http, Lost, heartbeat_of, lost_by
from headrace.client.retry import Retry
from headrace.client.session import Gap, Item, Session, Watchdog
from headrace.wire.sse import ServerSentEvent, SSEDecoder


async def follow(http: Http, session: Session, *, query: Mapping[str, str]) -> AsyncGenerator[Item]:
    """Everything after the session's cursor, once and in order.

    Raises:
        ServerUnreachable: no progress within the patience.
        ProtocolBroken, or whatever the server refused with.
    """
    clock = asyncio.get_running_loop().time
    retry = http.retry()
    while not session.ended:
        link = Link(http, session, query, retry)
        reason, after = "the connection was cut", 0.0
        try:
            async with aclosing(link.items()) as items:
                async for item in items:
                    yield item
        except Gap as gap:
            reason = gap.message
        except Lost as lost:
            reason, after = str(lost), lost.after
        if not session.ended:
            await asyncio.sleep(retry.wait(clock(), reason=reason, at_least=max(after, link.retry_s)))


class Link:
    """One connection. `retry_s` is what the server wants a client to wait after it."""

    def __init__(self, http: Http, session: Session, query: Mapping[str, str], retry: Retry) -> None:
        self._http = http
        self._session = session
        self._query = query
        self._retry = retry
        self._decoder = SSEDecoder()

    @property
    def retry_s(self) -> float:
        return (self._decoder.retry or 0) / 1000

    async def items(self) -> AsyncGenerator[Item]:
        """What this connection brings. Ends when the server closes it; raises Lost when it breaks or falls silent."""
        clock = asyncio.get_running_loop().time
        path = f"/v1/runs/{quote(self._session.run_id, safe='')}/events"
        headers = {"Last-Event-ID": str(self._session.cursor)}
        async with self._http.stream(path, headers=headers, query=self._query) as response:
            if response.status == 204:
                self._session.finish()
                return
            async with aclosing(_chunks(response)) as chunks:
                async for data in chunks:
                    self._retry.heard(clock())
                    for event in self._decoder.feed(data):
                        item = take_event(self._session, event)
                        if item is not None:
                            self._retry.progress(clock())
                            yield item
                        if self._session.ended:
                            return


def take_event(session: Session, event: ServerSentEvent) -> Item | None:
    """What one event of a run's stream means to the session. Raises as `Session.take`."""
    frame = _frame(session.run_id, event)
    return None if frame is None else session.take(frame)


def _frame(run_id: str, event: ServerSentEvent) -> Frame | None:
    """None for an event without an id, which is no record."""
    if event.event == SNAPSHOT:
        return read_snapshot(event.data.encode())
    if event.id is None:
        return None
    return read_record(run_id, read_seq(event.id), event.event, event.data.encode())


async def _chunks(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
    """The body as it comes. Raises Lost when it breaks, or says nothing for too long."""
    clock = asyncio.get_running_loop().time
    watchdog = Watchdog(clock(), heartbeat_of(response.headers))
    while True:
        try:
            async with asyncio.timeout_at(watchdog.deadline):
                data = await response.content.readany()
        except TimeoutError as exc:
            raise Lost("the link fell silent") from exc
        except (aiohttp.ClientError, OSError) as exc:
            raise lost_by(exc) from exc
        if not data:
            return
        watchdog.heard(clock())
        yield data
