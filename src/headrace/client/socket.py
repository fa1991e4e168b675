"""Follow many runs over one WebSocket that reconnects by itself. `hub` decides, this connects, reads and writes."""

import asyncio
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

import aiohttp

from headrace.client.aio import start_body
from headrace.client.followed import Followed
from headrace.client.http import ANSWER_S, COME_BACK, Http, Lost, WebSocket, heartbeat_of, lost_by, retry_after
from headrace.client.hub import Answered, ComeBack, Ended, Got, Hub, Outcome, Say, Wanted
from headrace.client.retry import Retry
from headrace.client.session import Session, Watchdog
from headrace.errors import ClientError, HeadraceError, PayloadTooLarge, ProtocolBroken, Unauthorized
from headrace.messages import Message

SUBPROTOCOL = "headrace.v1.json"
_FINAL_CLOSES: dict[int, type[HeadraceError]] = {4500: Unauthorized, 4501: PayloadTooLarge}


class Socket:
    """`async with client.connect() as socket`. Several connections may come and go while it is open."""

    def __init__(self, http: Http) -> None:
        self.hub = Hub()
        self._http = http
        self._followed: dict[str, Followed] = {}
        self._answers: dict[int, asyncio.Future[Answered]] = {}
        self._connection: WebSocket | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._broken: HeadraceError | None = None

    async def __aenter__(self) -> "Socket":
        self._keeping = asyncio.create_task(self._keep_connected())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._keeping is not None
        self._keeping.cancel()
        await asyncio.wait([self._keeping])
        self._fail(ClientError("The socket has been closed."))

    async def start(
        self,
        input: str | Sequence[Message],
        agent: str | None = None,
        thread_id: str | None = None,
        *,
        chunk: str = "auto",
        types: Iterable[str] = (),
        model: str | None = None,
        options: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Followed:
        """Start a run, once, and follow it. As AsyncClient.start."""
        body = start_body(input, agent=agent, thread_id=thread_id, model=model, options=options, metadata=metadata)
        started = await self.ask("start", run=body, key=idempotency_key or str(uuid.uuid4()))
        return await self.follow(started.run_id, chunk=chunk, types=types)

    async def follow(self, run_id: str, after: int = 0, chunk: str = "auto", types: Iterable[str] = ()) -> Followed:
        """Follow a run after a seq, or only these `types` of it and its end. As Run.events.

        Following it again takes the place of the earlier following.
        """
        self._require_open()
        wanted = Wanted(chunk, tuple(types))
        session = Session(run_id, after=after, filtered=bool(wanted.types))
        followed = self._followed[run_id] = Followed(self, session, wanted)
        await self.say(self.hub.follow(session, wanted))
        return followed

    async def follow_again(self, followed: Followed) -> None:
        """Continue after its session's cursor: its reader has caught up, or the run may be readable again."""
        self._require_open()
        self._followed[followed.id] = followed
        await self.say(self.hub.follow(followed.session, followed.wanted))

    async def forget(self, run_id: str) -> None:
        self._followed.pop(run_id, None)
        await self.say(self.hub.unfollow(run_id))

    def retry(self) -> Retry:
        return self._http.retry()

    async def ask(self, kind: str, **fields: Any) -> Answered:
        """Send a command until it is answered, over as many connections as it takes.

        Raises:
            HeadraceError: the server refused, by its code.
            ServerUnreachable: no answer within the patience.
        """
        retry = self.retry()
        while True:
            answered = await self._ask_once(kind, fields)
            if answered.error is None:
                return answered
            if isinstance(answered.error, ClientError) or not answered.error.retryable:
                raise answered.error
            await asyncio.sleep(retry.wait(asyncio.get_running_loop().time(), reason=answered.error.message))

    async def _ask_once(self, kind: str, fields: Mapping[str, Any]) -> Answered:
        self._require_open()
        ref, say = self.hub.command(kind, **fields)
        answer: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._answers[ref] = answer
        await self.say(say)
        return await answer

    async def say(self, say: Say) -> None:
        """Send if connected; what could not be sent is said again by the hub on the next connection."""
        if self._connection is not None:
            # Should it fail: the reader of this connection notices too, and reconnects.
            with suppress(aiohttp.ClientError, OSError, RuntimeError):
                await self._connection.send_str(say.text)

    async def _keep_connected(self) -> None:
        clock = asyncio.get_running_loop().time
        retry = self._http.retry()
        try:
            while True:
                reason, after = "the connection was closed", 0.0
                try:
                    await self._one_connection(retry)
                except Lost as lost:
                    reason, after = str(lost), lost.after
                await asyncio.sleep(retry.wait(clock(), reason=reason, at_least=after))
        except HeadraceError as error:
            self._fail(error)

    async def _one_connection(self, retry: Retry) -> None:
        connection = await _open(self._http)
        try:
            self._connection = connection
            for say in self.hub.connected():
                await self.say(say)
            await self._read(connection, retry)
        finally:
            self._connection = None
            await connection.close()

    async def _read(self, connection: WebSocket, retry: Retry) -> None:
        """Read until the connection ends, saying `ping` where nothing else is heard."""
        clock = asyncio.get_running_loop().time
        heartbeat = heartbeat_of(connection.headers)
        watchdog = Watchdog(clock(), heartbeat)
        while True:
            try:
                async with asyncio.timeout_at(min(watchdog.deadline, clock() + heartbeat)):
                    message = await connection.receive()
            except TimeoutError as exc:
                if clock() >= watchdog.deadline:
                    raise Lost("the link fell silent") from exc
                await connection.send_str('{"type":"ping"}')
                continue
            watchdog.heard(clock())
            retry.heard(clock())
            if message.type is not aiohttp.WSMsgType.TEXT:
                return _closed(connection)
            if await self._do(self.hub.receive(message.data)):
                retry.progress(clock())

    async def _do(self, outcomes: Sequence[Outcome]) -> bool:
        """Hand everything to whom it concerns. True if any of it was progress. Raises Lost on ComeBack."""
        progress = False
        for outcome in outcomes:
            match outcome:
                case Say():
                    await self.say(outcome)
                case Got():
                    progress = True
                    await self._got(outcome)
                case Ended():
                    self._ended(outcome)
                case Answered():
                    progress = progress or outcome.error is None
                    self._answered(outcome)
                case ComeBack():
                    raise Lost(outcome.reason)
        return progress

    async def _got(self, got: Got) -> None:
        followed = self._followed.get(got.run_id)
        if followed is not None and not followed.put(got.item):
            await self.say(self.hub.unfollow(got.run_id))

    def _ended(self, ended: Ended) -> None:
        followed = self._followed.pop(ended.run_id, None)
        if followed is not None:
            followed.finish(ended.error)

    def _answered(self, answered: Answered) -> None:
        answer = self._answers.pop(answered.ref, None)
        if answer is not None and not answer.done():
            answer.set_result(answered)

    def _fail(self, error: HeadraceError) -> None:
        """The socket is of no more use: everybody who waits is told."""
        self._broken = self._broken or error
        for followed in [*self._followed.values()]:
            self._ended(Ended(followed.id, error))
        for ref in [*self._answers]:
            self._answered(Answered(ref, error=error))

    def _require_open(self) -> None:
        if self._keeping is None:
            raise ClientError("The socket is not open.", hint="Use `async with client.connect() as socket`.")
        if self._broken is not None:
            raise self._broken


async def _open(http: Http) -> WebSocket:
    """Raises Lost, or HeadraceError when coming back would not help."""
    try:
        async with asyncio.timeout(ANSWER_S):
            connection = await http.session.ws_connect(
                http.base_url + "/ws", protocols=[SUBPROTOCOL], max_msg_size=0, autoclose=True
            )
        assert isinstance(connection, WebSocket)
        return connection
    except aiohttp.WSServerHandshakeError as exc:
        if exc.status in (401, 403):
            raise Unauthorized("The server refused the WebSocket.", hint="Is the API key right?") from exc
        if exc.status < 500 and exc.status not in COME_BACK:
            raise ProtocolBroken(f"The server answered {exc.status} to a WebSocket.", hint=http.base_url) from exc
        raise Lost(f"{exc.status} {exc.message}", after=retry_after(exc.headers or {})) from exc
    except (aiohttp.ClientError, TimeoutError, OSError) as exc:
        raise lost_by(exc) from exc


def _closed(connection: aiohttp.ClientWebSocketResponse) -> None:
    """4500 to 4999 mean not to come back. Raises the error of such a code."""
    code = connection.close_code
    if code is not None and 4500 <= code <= 4999:
        raise _FINAL_CLOSES.get(code, ProtocolBroken)(f"The server closed the WebSocket with {code}.")
