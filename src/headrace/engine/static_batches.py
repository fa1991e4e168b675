"""Static batching, to compare with and for nothing else.

Engines once computed a batch of requests from its first token to its last, and the next batch waited until the longest
answer of the one before had ended. Every engine that Headrace drives admits a request whenever one has ended
(continuous batching). Put behind this it is used the old way, and a bench shows what that costs: places stand empty
until the longest answer has ended, and who comes late waits for a whole batch.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import msgspec

from headrace.engine.admission import require_supported
from headrace.engine.port import Capabilities, Chunk, Engine, Finish, ModelRequest


class _Batch:
    def __init__(self) -> None:
        self.members = 0
        self.complete = False  # nobody joins any more
        self.started = asyncio.Event()


class StaticBatches:
    """Starts requests together, `size` of them or those that have come `wait` seconds after the first, as soon as every
    answer of the batch before has ended."""

    def __init__(self, engine: Engine, *, size: int = 8, wait: float = 0.05) -> None:
        self._engine = engine
        self._size = size
        self._wait = wait
        self._batches: deque[_Batch] = deque()  # the first one may be running

    @property
    def name(self) -> str:
        return self._engine.name

    @property
    def model(self) -> str:
        return self._engine.model

    @property
    def capabilities(self) -> Capabilities:
        """Of embeddings it makes no batches."""
        return msgspec.structs.replace(self._engine.capabilities, embeddings=False)

    async def __aenter__(self) -> "StaticBatches":
        await self._engine.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._engine.__aexit__(*exc)

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[Chunk], None]:
        require_supported(request, self.capabilities, engine=self.name)
        async with aclosing(self._answer(request)) as chunks:
            yield chunks

    async def _answer(self, request: ModelRequest) -> AsyncGenerator[Chunk, None]:
        loop = asyncio.get_running_loop()
        asked = loop.time()
        batch = self._join()
        try:
            await batch.started.wait()
            waited = (loop.time() - asked) * 1000
            async with self._engine.stream(request) as chunks:
                async for chunk in chunks:
                    if isinstance(chunk, Finish):
                        chunk = msgspec.structs.replace(chunk, timing=chunk.timing.after(waited))
                    yield chunk
        finally:
            self._leave(batch)

    def _join(self) -> _Batch:
        if not self._batches or self._batches[-1].complete:
            self._batches.append(_Batch())
            asyncio.get_running_loop().call_later(self._wait, self._complete, self._batches[-1])
        batch = self._batches[-1]
        batch.members += 1
        if batch.members == self._size:
            self._complete(batch)
        return batch

    def _leave(self, batch: _Batch) -> None:
        batch.members -= 1
        self._start()

    def _complete(self, batch: _Batch) -> None:
        batch.complete = True
        self._start()

    def _start(self) -> None:
        """The next batch, once the one before has nobody left."""
        while self._batches and self._batches[0].complete and not self._batches[0].members:
            self._batches.popleft()
        if self._batches and self._batches[0].complete:
            self._batches[0].started.set()
