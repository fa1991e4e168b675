"""Many runs on one WebSocket. All that the runs of one socket have to say in a tick leaves in one message."""

import asyncio
import hashlib
from collections.abc import Sequence

import msgspec

from headrace.errors import HeadraceError, InvalidRequest
from headrace.http.api import StartBody, wish
from headrace.http.outlet import Message, Outlet, Receive, Scope, Send
from headrace.http.pulse import Pulse
from headrace.http.stream import known_head
from headrace.log.follow import Follower
from headrace.runs import Runs
from headrace.state import RunState
from headrace.wire import connection as wire
from headrace.wire.view import View

MAX_FOLLOWED = 1000
"""Runs that one socket may follow at the same time."""


class _RunSink:
    """One followed run of a socket (log.follow.Sink)."""

    __slots__ = ("_socket", "_view", "follower", "run_id")

    def __init__(self, socket: "Socket", run_id: str, view: View) -> None:
        self._socket = socket
        self._view = view
        self.run_id = run_id
        self.follower: Follower | None = None

    def frames(self, frames: Sequence[bytes]) -> bool:
        if len(frames) > 1 or not self._view.plain:
            frames = self._view.frames(frames, asyncio.get_running_loop().time())
            self._socket.arm(self, self._view.due)
        return self._socket.put([wire.record_frame(self.run_id, frame) for frame in frames])

    def snapshot(self, state: RunState) -> bool:
        self._view.flush()  # what was held back is in the snapshot
        self._socket.arm(self, None)
        return self._socket.put([wire.snapshot_frame(state)])

    def end(self) -> None:
        self._socket.forget(self.run_id)

    def fail(self, error: Exception) -> None:
        shown = error if isinstance(error, HeadraceError) else HeadraceError("The run cannot be read.")
        self._socket.put([wire.error_frame(shown, run_id=self.run_id)])
        self._socket.forget(self.run_id)

    def flush(self) -> None:
        """The chunking policy has held text long enough."""
        self._socket.put([wire.record_frame(self.run_id, frame) for frame in self._view.flush()])


class Socket:
    """One client's socket: its followers, and what it has not been sent yet (at most one tick's worth)."""

    def __init__(self, *, send: Send, runs: Runs, pulse: Pulse, tenant: str) -> None:
        self.quiet = 0
        self._runs = runs
        self._pulse = pulse
        self._tenant = tenant
        self._sinks: dict[str, _RunSink] = {}
        self._waiting: list[bytes] = []
        self._timers: dict[_RunSink, asyncio.TimerHandle] = {}
        self._scheduled = False
        self._closing: int | None = None
        self._outlet = Outlet(send, on_ready=self._ready, on_lost=self.close)
        pulse.add(self)

    def put(self, frames: list[bytes]) -> bool:
        """Send with everything else of this tick. False while the client is slow."""
        self._waiting += frames
        if not self._scheduled and not self._outlet.busy:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)
        return not self._outlet.busy

    def arm(self, sink: _RunSink, due: float | None) -> None:
        timer = self._timers.pop(sink, None)
        if timer is not None:
            timer.cancel()
        if due is not None:
            self._timers[sink] = asyncio.get_running_loop().call_at(due, sink.flush)

    def forget(self, run_id: str) -> None:
        """Follow this run no longer."""
        sink = self._sinks.pop(run_id, None)
        if sink is not None:
            self.arm(sink, None)
            if sink.follower is not None:
                sink.follower.close()

    async def take(self, message: Message) -> None:
        """Everything in a client's message, in order."""
        text = message.get("text")
        if text is None:
            self.put([wire.error_frame(InvalidRequest("Binary messages are not spoken here.", hint="Send JSON text."))])
            return
        for number, command in enumerate(wire.read_commands(text)):
            if number % 32 == 31:
                await self.room()
            if isinstance(command, HeadraceError):
                self.put([wire.error_frame(command)])
                continue
            try:
                await self._do(command)
            except HeadraceError as error:
                self.put([wire.refusal_frame(error, command)])

    async def room(self) -> None:
        """Let others run, and let the client read what it has asked for before more of it is taken."""
        await asyncio.sleep(0)
        await self._outlet.drained()

    def beat(self) -> None:
        self.put([wire.answer_frame("pong", None)])

    def go_away(self) -> None:
        for run_id in tuple(self._sinks):
            self.forget(run_id)
        self._closing = wire.CLOSE_GOING_AWAY
        self.put([wire.going_away_frame()])

    def close(self) -> None:
        """The client has gone."""
        self._pulse.discard(self)
        for run_id in tuple(self._sinks):
            self.forget(run_id)
        self._outlet.close()

    async def _do(self, command: wire.AnyCommand) -> None:
        match command:
            case wire.Start():
                await self._start(command)
            case wire.Follow():
                await self._follow(command)
            case wire.Unfollow():
                self.forget(command.run_id)
            case wire.Cancel():
                await self._runs.cancel(command.run_id, self._tenant, reason=command.reason)
                self.put([wire.answer_frame("accepted", command.ref, run_id=command.run_id)])
            case wire.Steer():
                await self._steer(command)
            case wire.Answer():
                await self._runs.answer(command.run_id, self._tenant, command.input_id, command.value)
                self.put([wire.answer_frame("accepted", command.ref, run_id=command.run_id)])
            case wire.Ping():
                self.put([wire.answer_frame("pong", command.ref)])
            case wire.Ack():
                pass  # the client's own record of what it has; the cursor is kept by whoever reconnects

    async def _start(self, command: wire.Start) -> None:
        self._require_room()
        raw = bytes(command.run)
        try:
            body = msgspec.json.decode(raw, type=StartBody)
        except msgspec.DecodeError as exc:
            raise InvalidRequest(f"run does not fit: {exc}.", hint="It is the body of POST /v1/runs.") from exc
        fingerprint = hashlib.sha256(raw).hexdigest() if command.key else ""
        run_id = await self._runs.start(wish(body), tenant=self._tenant, key=command.key, fingerprint=fingerprint)
        self.put([wire.answer_frame("started", command.ref, run_id=run_id)])
        self._follow_from(run_id, 0, View())

    async def _steer(self, command: wire.Steer) -> None:
        steer_id = await self._runs.steer(command.run_id, self._tenant, command.text, command.mode, key=command.key)
        self.put([wire.answer_frame("accepted", command.ref, run_id=command.run_id, steer_id=steer_id)])

    async def _follow(self, command: wire.Follow) -> None:
        await self._runs.check(command.run_id, self._tenant)
        view = View(command.chunk, command.types or ())
        if command.after < 0:
            raise InvalidRequest("after is negative.", hint="Send the last seq you have, or 0.")
        head = await known_head(self._runs.log, command.run_id, command.after)
        if head.closed and command.after == head.seq:
            self.put([wire.answer_frame("ended", command.ref, run_id=command.run_id, seq=head.seq)])
            return
        self.forget(command.run_id)
        self._require_room()
        self.put([wire.answer_frame("following", command.ref, run_id=command.run_id)])
        self._follow_from(command.run_id, command.after, view)

    def _follow_from(self, run_id: str, after: int, view: View) -> None:
        self.forget(run_id)
        sink = self._sinks[run_id] = _RunSink(self, run_id, view)
        sink.follower = Follower(self._runs.log, run_id, after, sink)
        sink.follower.start()

    def _require_room(self) -> None:
        """Before anything is started or promised."""
        if len(self._sinks) >= MAX_FOLLOWED:
            raise InvalidRequest(f"This socket follows {MAX_FOLLOWED} runs already.", hint="Unfollow some first.")

    def _flush(self) -> None:
        self._scheduled = False
        if self._outlet.busy:
            return
        if self._waiting:
            self.quiet = 0
            text, self._waiting = b"\n".join(self._waiting).decode(), []
            if not self._outlet.send({"type": "websocket.send", "text": text}):
                self._block()
                return
        if self._closing is not None:
            self._outlet.send({"type": "websocket.close", "code": self._closing})

    def _block(self) -> None:
        """No run gives another batch while the client is slow, so that what waits here stays small."""
        for sink in self._sinks.values():
            if sink.follower is not None:
                sink.follower.block()

    def _ready(self) -> None:
        self._flush()
        for sink in tuple(self._sinks.values()):
            if self._outlet.busy:
                return
            if sink.follower is not None:
                sink.follower.pump()


class WebSocketEndpoint:
    """Serves `/ws` (http.app.SocketEndpoint)."""

    def __init__(self, runs: Runs, pulse: Pulse) -> None:
        self._runs = runs
        self._pulse = pulse

    async def __call__(self, scope: Scope, receive: Receive, send: Send, tenant: str) -> None:
        offered = scope.get("subprotocols") or []
        if offered and wire.SUBPROTOCOL not in offered:
            await send({"type": "websocket.close", "code": wire.CLOSE_NO_SUBPROTOCOL})
            return
        heartbeat = (b"x-heartbeat-interval", b"%g" % self._pulse.interval)
        subprotocol = wire.SUBPROTOCOL if offered else None
        await send({"type": "websocket.accept", "subprotocol": subprotocol, "headers": [heartbeat]})
        socket = Socket(send=send, runs=self._runs, pulse=self._pulse, tenant=tenant)
        try:
            while (message := await receive())["type"] == "websocket.receive":
                await socket.take(message)
                await socket.room()
        finally:
            socket.close()
