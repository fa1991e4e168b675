"""Many runs on one WebSocket: what to say, and what each message means. No I/O, no clock.

Every command has a `ref` of ours and stays pending until its answer. A new connection is told everything that is
still open: each unfinished run is followed again after its cursor, each pending command is repeated (one that must
not be done twice carries a key). Between asking to follow a run and the answer, what comes of it is an earlier
following's and is ignored. An error that names a run is that run's alone.
"""

from typing import Any

import msgspec

from headrace.client.frames import Frame, Snapshot, read_record, read_state
from headrace.client.problems import error_for
from headrace.client.session import Gap, Item, Session
from headrace.errors import HeadraceError, ProtocolBroken


class Wanted(msgspec.Struct, frozen=True):
    """How a run is to be seen: the chunking policy, and only these types of records (none named: all)."""

    chunk: str = "auto"
    types: tuple[str, ...] = ()


class Say(msgspec.Struct, frozen=True):
    """Send this now, if there is a connection. It is said again by itself on the next one if need be."""

    text: str


class Got(msgspec.Struct, frozen=True):
    run_id: str
    item: Item


class Ended(msgspec.Struct, frozen=True):
    """Nothing more comes of this run; with an error if it did not end by itself."""

    run_id: str
    error: HeadraceError | None = None


class Answered(msgspec.Struct, frozen=True):
    ref: int
    run_id: str = ""
    steer_id: str = ""
    error: HeadraceError | None = None


class ComeBack(msgspec.Struct, frozen=True):
    """Give this connection up and open another one."""

    reason: str


Outcome = Say | Got | Ended | Answered | ComeBack


class _Incoming(msgspec.Struct):
    type: str
    ref: int | None = None
    run_id: str = ""
    seq: int = 0
    event: str = ""
    data: msgspec.Raw = msgspec.Raw(b"{}")
    as_of_seq: int = 0
    state: msgspec.Raw = msgspec.Raw(b"null")
    steer_id: str = ""
    code: str = ""
    message: str = ""
    hint: str | None = None
    retry: bool = False


class _View:
    """One followed run. `awaited` is the ref of the `follow` that has not been answered."""

    def __init__(self, session: Session, wanted: Wanted) -> None:
        self.session = session
        self.wanted = wanted
        self.awaited: int | None = None


_AS_IT_COMES = Wanted()
_incoming = msgspec.json.Decoder(_Incoming)


class Hub:
    """What one client knows of its runs and open commands, whatever connection carries them."""

    def __init__(self) -> None:
        self._views: dict[str, _View] = {}
        self._follows: dict[int, str] = {}
        self._pending: dict[int, str] = {}
        self._ref = 0

    def command(self, kind: str, **fields: Any) -> tuple[int, Say]:
        """A command other than `follow`; its answer will be an `Answered` with this ref."""
        ref = self._new_ref()
        text = self._pending[ref] = _encode(kind, ref, fields)
        return ref, Say(text)

    def follow(self, session: Session, wanted: Wanted = _AS_IT_COMES) -> Say:
        """Follow a run after its session's cursor, instead of an earlier following of it."""
        view = self._views[session.run_id] = _View(session, wanted)
        return self._ask(view)

    def unfollow(self, run_id: str) -> Say:
        self._views.pop(run_id, None)
        return Say(_encode("unfollow", self._new_ref(), {"run_id": run_id}))

    def connected(self) -> list[Say]:
        """What a new connection has to be told."""
        self._follows.clear()
        again = [Say(text) for text in self._pending.values()]
        return again + [self._ask(view) for view in self._views.values()]

    def receive(self, text: str) -> list[Outcome]:
        """What a message means. Raises ProtocolBroken when it cannot be read."""
        outcomes: list[Outcome] = []
        for line in text.split("\n"):
            if line.strip():
                outcomes += self._take(_read(line))
        return outcomes

    def _take(self, frame: _Incoming) -> list[Outcome]:
        match frame.type:
            case "record":
                return self._take_frame(frame, read_record(frame.run_id, frame.seq, frame.event, bytes(frame.data)))
            case "snapshot":
                state = read_state(bytes(frame.state))
                return self._take_frame(frame, Snapshot(as_of_seq=frame.as_of_seq, state=state))
            case "following" | "ended":
                return self._answered_follow(frame)
            case "error":
                return self._refused(frame)
            case "going_away":
                return [ComeBack("the server is going away")]
            case _:
                return self._answered(frame)

    def _take_frame(self, incoming: _Incoming, frame: Frame) -> list[Outcome]:
        view = self._views.get(incoming.run_id)
        if view is None or view.awaited is not None:
            return []
        try:
            item = view.session.take(frame)
        except Gap:
            return [self._ask(view)]
        except ProtocolBroken as broken:
            return self._end(incoming.run_id, broken)
        outcomes: list[Outcome] = [] if item is None else [Got(incoming.run_id, item)]
        return outcomes + (self._end(incoming.run_id) if view.session.ended else [])

    def _answered_follow(self, frame: _Incoming) -> list[Outcome]:
        view = self._views.get(self._follows.pop(frame.ref or 0, ""))
        if view is None or view.awaited != frame.ref:
            return []
        view.awaited = None
        if frame.type == "following":
            return []
        view.session.finish()
        return self._end(frame.run_id)

    def _answered(self, frame: _Incoming) -> list[Outcome]:
        if frame.ref is None or self._pending.pop(frame.ref, None) is None:
            return []
        return [Answered(frame.ref, run_id=frame.run_id, steer_id=frame.steer_id)]

    def _refused(self, frame: _Incoming) -> list[Outcome]:
        """An error names a follow, another command, only a run, or nothing of ours; then the connection starts anew."""
        error = error_for(frame.code, frame.message, hint=frame.hint)
        if frame.ref is None and frame.run_id:
            return self._failed(frame.run_id, error)
        if frame.ref is None or (frame.retry and not frame.run_id):
            return [ComeBack(error.message)]
        followed = self._follows.pop(frame.ref, None)
        if followed is not None:
            return self._end(followed, error)
        return [Answered(frame.ref, error=error)] if self._pending.pop(frame.ref, None) else []

    def _failed(self, run_id: str, error: HeadraceError) -> list[Outcome]:
        """The server has given up following this run."""
        view = self._views.get(run_id)
        return [] if view is None or view.awaited is not None else self._end(run_id, error)

    def _ask(self, view: _View) -> Say:
        ref = self._new_ref()
        view.awaited = ref
        self._follows[ref] = view.session.run_id
        fields: dict[str, Any] = {"run_id": view.session.run_id, "after": view.session.cursor}
        fields |= {"chunk": view.wanted.chunk, "types": view.wanted.types}
        return Say(_encode("follow", ref, fields))

    def _end(self, run_id: str, error: HeadraceError | None = None) -> list[Outcome]:
        self._views.pop(run_id, None)
        return [Ended(run_id, error)]

    def _new_ref(self) -> int:
        self._ref += 1
        return self._ref


def _encode(kind: str, ref: int, fields: dict[str, Any]) -> str:
    return msgspec.json.encode({"type": kind, "ref": ref, **fields}).decode()


def _read(line: str) -> _Incoming:
    try:
        return _incoming.decode(line)
    except msgspec.MsgspecError as exc:
        raise ProtocolBroken(f"A frame cannot be read: {exc}.") from exc
