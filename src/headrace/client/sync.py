"""The same client without `await`: it drives the asynchronous one on a loop in a thread of its own, so it works in
scripts, in threads and inside a running loop alike."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, TypeVar

from headrace.client.aio import DEFAULT_URL, AsyncClient
from headrace.client.listing import AgentInfo, RunInfo, Thread
from headrace.client.run import Run as AsyncRun
from headrace.client.session import Item
from headrace.client.text import Retracted
from headrace.errors import ClientError
from headrace.messages import Message
from headrace.state import RunState

T = TypeVar("T")


class _Loop:
    """An event loop in a thread. `close` ends both."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="headrace-client", daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run to the end and wait. What interrupts the wait (Ctrl-C) cancels the coroutine.

        Raises:
            ClientError: the client has been closed.
        """
        if not self._thread.is_alive():
            coroutine.close()
            raise ClientError("This client has been closed.", hint="Make a new one.")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """The items, one by one. Leaving early closes the generator."""
        try:
            while True:
                try:
                    yield self.call(_next(items))
                except _Ended:
                    return
        finally:
            if self._thread.is_alive():
                self.call(_close(items))

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


class _Ended(Exception):
    """StopAsyncIteration cannot travel through a future."""


async def _next(items: AsyncGenerator[T, None]) -> T:
    try:
        return await anext(items)
    except StopAsyncIteration:
        raise _Ended from None


async def _close(items: AsyncGenerator[T, None]) -> None:
    """Close a generator, also one whose last step has just been cancelled and is still unwinding."""
    while getattr(items, "ag_running", False):  # noqa: ASYNC110 (a generator has no event; it unwinds in a tick or two)
        await asyncio.sleep(0)
    await items.aclose()


class Client:
    """One server. Use it as a context manager, or `close` it. May be shared by threads. See AsyncClient."""

    def __init__(
        self, base_url: str = DEFAULT_URL, api_key: str | None = None, *, patience: float | None = 60.0
    ) -> None:
        self._client = AsyncClient(base_url, api_key, patience=patience)
        self._loop = _Loop()
        self._open = True

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._open:
            self._open = False
            self._loop.call(self._client.close())
            self._loop.close()

    def start(
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
        """As AsyncClient.start."""
        starting = self._client.start(
            input,
            agent,
            thread_id,
            model=model,
            options=options,
            metadata=metadata,
            idempotency_key=idempotency_key,
        )
        return Run(self._loop, self._loop.call(starting))

    def run(self, run_id: str) -> "Run":
        return Run(self._loop, self._client.run(run_id))

    def runs(self, *, limit: int = 50, before: str | None = None) -> list[RunInfo]:
        return self._loop.call(self._client.runs(limit=limit, before=before))

    def thread(self, thread_id: str) -> Thread:
        return self._loop.call(self._client.thread(thread_id))

    def agents(self) -> list[AgentInfo]:
        return self._loop.call(self._client.agents())


class Run:
    """One run on the server. See the asynchronous Run for what each method promises."""

    def __init__(self, loop: _Loop, run: AsyncRun) -> None:
        self._loop = loop
        self._run = run

    def __repr__(self) -> str:
        return f"<Run {self.id}>"

    @property
    def id(self) -> str:
        return self._run.id

    @property
    def state(self) -> RunState:
        async def read() -> RunState:
            return self._run.state

        return self._loop.call(read())

    def events(self, after: int = 0, types: Iterable[str] | None = None, chunk: str | None = None) -> Iterator[Item]:
        return self._loop.iterate(self._run.events(after, types, chunk))

    def text(self, *, chunk: str | None = None) -> Iterator[str | Retracted]:
        return self._loop.iterate(self._run.text(chunk=chunk))

    def result(self) -> RunState:
        return self._loop.call(self._run.result())

    def refresh(self) -> RunState:
        return self._loop.call(self._run.refresh())

    def cancel(self, reason: str | None = None) -> RunState:
        return self._loop.call(self._run.cancel(reason))

    def steer(
        self,
        text: str,
        mode: Literal["interrupt", "next_turn"] = "next_turn",
        *,
        idempotency_key: str | None = None,
    ) -> str:
        return self._loop.call(self._run.steer(text, mode, idempotency_key=idempotency_key))

    def answer(self, input_id: str, value: Any) -> RunState:
        return self._loop.call(self._run.answer(input_id, value))
