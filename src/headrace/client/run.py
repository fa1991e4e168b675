"""One run, seen from a client: follow it, talk to it, wait for it."""

import uuid
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from headrace.client.follow import follow
from headrace.client.frames import Snapshot
from headrace.client.http import Http
from headrace.client.session import Item, Session
from headrace.client.text import Retracted, pieces
from headrace.events import TERMINAL_TYPES
from headrace.state import RunState


class Shown(msgspec.Struct):
    """The server's answer to most requests about a run."""

    state: RunState


class _Steer(msgspec.Struct):
    steer_id: str


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
        state = (await self._http.request("GET", self._path)).read(Shown).state
        self._session = Session(self.id)
        self._session.take(Snapshot(as_of_seq=state.seq, state=state))
        return state

    async def cancel(self, reason: str | None = None) -> RunState:
        """Ask the run to stop; its terminal record follows when the work has. Again, or too late, changes nothing."""
        answer = await self._http.request("POST", f"{self._path}/cancel", body={"reason": reason})
        return answer.read(Shown).state

    async def steer(
        self,
        text: str,
        mode: Literal["interrupt", "next_turn"] = "next_turn",
        *,
        idempotency_key: str | None = None,
    ) -> str:
        """Give a run in flight another thought, once; the steer's id.

        Raises:
            RunEnded: too late.
            ServerUnreachable: unknown whether it arrived; ask again with the same `idempotency_key`.
        """
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        body = {"text": text, "mode": mode}
        answer = await self._http.request("POST", f"{self._path}/steer", body=body, headers=headers)
        return answer.read(_Steer).steer_id

    async def answer(self, input_id: str, value: Any) -> RunState:
        """Answer an `input.requested`. The same answer again is taken as such.

        Raises:
            UnknownInput, RunEnded.
            InputConflict: it has another answer already.
        """
        path = f"{self._path}/inputs/{quote(input_id, safe='')}"
        return (await self._http.request("POST", path, body={"value": value})).read(Shown).state
