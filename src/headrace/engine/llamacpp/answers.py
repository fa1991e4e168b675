"""Answers of whichever process lives: in one piece, or in segments with states saved in between (`snapshots.py`)."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

import msgspec

from headrace.engine.llamacpp.server import LlamaCppServer
from headrace.engine.llamacpp.slots import Slots
from headrace.engine.llamacpp.snapshot_files import make_room
from headrace.engine.llamacpp.snapshots import Living, Snapshots, in_segments
from headrace.engine.port import Chunk, ModelRequest


class Answers:
    """`living` does something with the process that lives now. Only where states are saved are slots chosen here."""

    def __init__(self, living: Living, *, slots: int) -> None:
        self._living = living
        self._slots = Slots(slots)
        self._snapshots: Snapshots | None = None

    @property
    def restored(self) -> int:
        """How many answers went on from a saved state."""
        return self._snapshots.restored if self._snapshots is not None else 0

    def save_states(self, folder: Path, *, every: int) -> None:
        """From now on, every so many tokens."""
        self._snapshots = Snapshots(folder, every=every)
        make_room(folder)

    def hand_over(self) -> None:
        """From now on, save the state of an answer that is left, where states are saved: somebody else goes on."""
        if self._snapshots is not None:
            self._snapshots.hands_over = True

    async def begun(self, request: ModelRequest, stack: AsyncExitStack) -> AsyncIterator[Chunk]:
        """An answer that a server has accepted. It ends with the stack."""
        if self._snapshots is None:
            return await self._accepted(request, stack)
        slot = self._slots.take(request.session)
        stack.callback(self._slots.give_back, slot)
        if in_segments(request):
            chunks = self._snapshots.answer(request, slot=slot, ask=self._segment, living=self._living)
            return await stack.enter_async_context(aclosing(chunks))
        request = msgspec.structs.replace(request, extra={**request.extra, "id_slot": slot})
        return await self._accepted(request, stack)

    @asynccontextmanager
    async def _segment(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[Chunk], None]:
        async with AsyncExitStack() as stack:
            yield await self._accepted(request, stack)

    async def _accepted(self, request: ModelRequest, stack: AsyncExitStack) -> AsyncIterator[Chunk]:
        async def begin(server: LlamaCppServer) -> AsyncIterator[Chunk]:
            answer = await stack.enter_async_context(server.answer(request))
            await answer.begin()
            return answer

        return await self._living(begin)
