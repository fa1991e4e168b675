"""The asynchronous client: start runs, follow them, and talk to them while they work."""

import uuid
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import quote

import msgspec

from headrace.client.follow import follow
from headrace.client.frames import Snapshot
from headrace.client.http import Answer, Http
from headrace.client.session import Item, Session
from headrace.client.text import Retracted, pieces
from headrace.errors import ProtocolBroken
from headrace.events import TERMINAL_TYPES
from headrace.messages import Message
from headrace.state import RunState, Status

if TYPE_CHECKING:
    from headrace.client.socket import Socket

T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:8321"


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the list of runs. Times are Unix milliseconds; `title` begins the last user message."""

    run_id: str
    agent: str
    thread_id: str
    status: Status
    created_ts: int
    ended_ts: int | None
    seq: int
    title: str


class Thread(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that share a conversation, oldest first."""

    thread_id: str
    messages: tuple[Message, ...]
    runs: tuple[RunInfo, ...]


class AgentInfo(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    description: str = ""


class _State(msgspec.Struct):
    state: RunState


class _Steer(msgspec.Struct):
    steer_id: str


class _Runs(msgspec.Struct):
    runs: list[RunInfo]


class _Agents(msgspec.Struct):
    agents: list[AgentInfo]


class AsyncClient:
    """One server. Use it as an async context manager, or `close` it.

    Requests are repeated and streams continued until `patience` seconds pass without progress (None: for ever).
    """

    def __init__(
        self, base_url: str = DEFAULT_URL, api_key: str | None = None, *, patience: float | None = 60.0
    ) -> None:
        self._http = Http(base_url, api_key=api_key, patience=patience)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.close()

    async def start(
        self,
        input: str | Sequence[Message],
        agent: str | None = None,
        thread_id: str | None = None,
        *,
        model: str | None = None,
        options: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> "Run":
        """Start a run, once: should the answer get lost, asking again with the same key finds the run it started.

        Raises:
            RequestError: nothing was started.
            ServerUnreachable: unknown whether it was; ask again with the same `idempotency_key`.
        """
        body = start_body(input, agent=agent, thread_id=thread_id, model=model, options=options, metadata=metadata)
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        answer = await self._http.request("POST", "/v1/runs", body=body, headers=headers)
        return self.run(_decode(answer, _State).state.run_id)

    def run(self, run_id: str) -> "Run":
        """A run by its id. Nothing is asked of the server yet."""
        return Run(self._http, run_id)

    async def runs(self, *, limit: int = 50, before: str | None = None) -> list[RunInfo]:
        """The latest runs, newest first; `before` is a run_id to continue after."""
        query = {"limit": str(limit), **({"before": before} if before else {})}
        return _decode(await self._http.request("GET", "/v1/runs", query=query), _Runs).runs

    async def thread(self, thread_id: str) -> Thread:
        """Raises UnknownThread."""
        return _decode(await self._http.request("GET", f"/v1/threads/{quote(thread_id, safe='')}"), Thread)

    async def agents(self) -> list[AgentInfo]:
        """What can be asked here; the first is the default."""
        return _decode(await self._http.request("GET", "/v1/agents"), _Agents).agents

    def connect(self) -> "Socket":
        """A WebSocket that follows many runs at once: `async with client.connect() as socket`."""
        from headrace.client.socket import Socket

        return Socket(self._http)


class Run:
    """One run on the server. Leaving it alone does not stop it."""

    def __init__(self, http: Http, run_id: str) -> None:
        self.id = run_id
        self._http = http
        self._path = f"/v1/runs/{quote(run_id, safe='')}"
        self._session = Session(run_id)

    def __repr__(self) -> str:
        return f"<Run {self.id} {self.state.status} at {self.state.seq}>"

    @property
    def state(self) -> RunState:
        """The run as far as it was followed here (`events`, `text`, `result`); `refresh` asks the server."""
        return self._session.state

    async def events(
        self, after: int = 0, types: Iterable[str] | None = None, chunk: str | None = None
    ) -> AsyncGenerator[Item, None]:
        """Every record after a seq, once and in order, up to the terminal one, through any broken connection.

        Where older records are no longer kept a Snapshot comes first. `types` shows only these (and the terminal
        one); `chunk` is the chunking policy, `token` for one record per token. A merged delta comes as one record
        with the last seq it covers. Stop early with `contextlib.aclosing`.

        Raises:
            UnknownRun, InvalidCursor, Unauthorized: what the server says.
            ServerUnreachable: no progress within the client's patience.
        """
        wanted = list(types or ())
        self._session = session = Session(self.id, after=after, filtered=bool(wanted))
        query = {"types": ",".join(wanted), "chunk": chunk}
        async with aclosing(
            follow(self._http, session, query={name: value for name, value in query.items() if value})
        ) as items:
            async for item in items:
                yield item

    async def text(self, *, chunk: str | None = None) -> AsyncGenerator[str | Retracted, None]:
        """What the run says, piece by piece; `Retracted` where something said is void. Raises as `events`."""
        async with aclosing(pieces(self.events(chunk=chunk))) as said:
            async for piece in said:
                yield piece

    async def result(self) -> RunState:
        """Wait for the end and return how it ended. A failed run is returned too: see `status` and `error`."""
        if not (self._session.whole and self.state.ended):
            async for _ in self.events(types=TERMINAL_TYPES):
                pass
            await self.refresh()
        return self.state

    async def refresh(self) -> RunState:
        """The run's state now. Raises UnknownRun."""
        state = _decode(await self._http.request("GET", self._path), _State).state
        self._session = Session(self.id)
        self._session.take(Snapshot(as_of_seq=state.seq, state=state))
        return state

    async def cancel(self, reason: str | None = None) -> RunState:
        """Ask the run to stop; its terminal record follows when the work has. Again, or too late, changes nothing."""
        return _decode(await self._http.request("POST", f"{self._path}/cancel", body={"reason": reason}), _State).state

    async def steer(self, text: str, mode: Literal["interrupt", "next_turn"] = "next_turn") -> str:
        """Give a run in flight another thought; the steer's id.

        Raises:
            RunEnded: too late.
            ProtocolBroken: the answer was lost, so it may or may not have arrived: see `state.steers`.
        """
        body = {"text": text, "mode": mode}
        answer = await self._http.request("POST", f"{self._path}/steer", body=body, repeatable=False)
        return _decode(answer, _Steer).steer_id

    async def answer(self, input_id: str, value: Any) -> RunState:
        """Answer an `input.requested`. The same answer again is taken as such.

        Raises:
            UnknownInput, RunEnded.
            InputConflict: it has another answer already.
        """
        path = f"{self._path}/inputs/{quote(input_id, safe='')}"
        return _decode(await self._http.request("POST", path, body={"value": value}), _State).state


def start_body(given: str | Sequence[Message], **fields: object) -> dict[str, object]:
    """The body of `POST /v1/runs`; fields that are None are left out."""
    return {"input": _input(given), **{name: value for name, value in fields.items() if value is not None}}


def _input(given: str | Sequence[Message]) -> str | list[dict[str, str]]:
    if isinstance(given, str):
        return given
    return [{"role": message.role, "content": message.content} for message in given]


def _decode(answer: Answer, wanted: type[T]) -> T:
    try:
        return msgspec.json.decode(answer.body, type=wanted)
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise ProtocolBroken(f"The server's answer cannot be read: {exc}.", hint="Is this a Headrace server?") from exc
