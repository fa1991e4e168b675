"""The asynchronous client: start runs, follow them, and talk to them while they work."""

import uuid
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from headrace.client.http import Http
from headrace.client.listing import AgentInfo, RunInfo, Thread
from headrace.client.run import Run, Shown
from headrace.messages import Message

if TYPE_CHECKING:
    from headrace.client.socket import Socket

DEFAULT_URL = "http://127.0.0.1:8321"


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
        return self.run(answer.read(Shown).state.run_id)

    def run(self, run_id: str) -> "Run":
        """A run by its id. Nothing is asked of the server yet."""
        return Run(self._http, run_id)

    async def runs(self, *, limit: int = 50, before: str | None = None) -> list[RunInfo]:
        """The latest runs, newest first; `before` is a run_id to continue after."""
        query = {"limit": str(limit), **({"before": before} if before else {})}
        return (await self._http.request("GET", "/v1/runs", query=query)).read(_Runs).runs

    async def thread(self, thread_id: str) -> Thread:
        """Raises UnknownThread."""
        return (await self._http.request("GET", f"/v1/threads/{quote(thread_id, safe='')}")).read(Thread)

    async def agents(self) -> list[AgentInfo]:
        """What can be asked here; the first is the default."""
        return (await self._http.request("GET", "/v1/agents")).read(_Agents).agents

    def connect(self) -> "Socket":
        """A WebSocket that follows many runs at once: `async with client.connect() as socket`."""
        from headrace.client.socket import Socket

        return Socket(self._http)


def start_body(given: str | Sequence[Message], **fields: object) -> dict[str, object]:
    """The body of `POST /v1/runs`; fields that are None are left out."""
    return {"input": _input(given), **{name: value for name, value in fields.items() if value is not None}}


def _input(given: str | Sequence[Message]) -> str | list[dict[str, str]]:
    if isinstance(given, str):
        return given
    return [{"role": message.role, "content": message.content} for message in given]
