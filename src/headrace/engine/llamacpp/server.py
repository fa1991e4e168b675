"""The HTTP server of the embedded process, as its client: answers, and what only llama.cpp has."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TypeVar

import msgspec

from headrace.engine.llamacpp.process import LlamaCppProcess
from headrace.engine.openai.engine import OpenAIEngine
from headrace.engine.port import Capabilities
from headrace.engine.presets import LLAMA_SERVER
from headrace.engine.upstream.loopback import LoopbackUpstream
from headrace.engine.upstream.port import Timeouts
from headrace.errors import EngineProtocol

T = TypeVar("T")


class LlamaCppServer(OpenAIEngine):
    """Of one life of the process."""

    def __init__(
        self, process: LlamaCppProcess, *, model: str, name: str, capabilities: Capabilities, timeouts: Timeouts
    ) -> None:
        super().__init__(
            process.url,
            model=model,
            api_key=process.api_key,
            name=name,
            capabilities=msgspec.structs.replace(capabilities, tools=True),
            spelling=LLAMA_SERVER.spelling,
            keeps_blanks=True,
            timeouts=timeouts,
            loopback=True,
        )
        self.process = process
        self._generates = process.url != process.embedder
        self._embedder = OpenAIEngine(
            process.embedder or process.url, model=model, api_key=process.api_key, timeouts=timeouts, loopback=True
        )
        self._slots = LoopbackUpstream(f"{process.url}/slots", api_key=process.api_key, timeouts=timeouts)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "LlamaCppServer":
        async with AsyncExitStack() as stack:
            await super().__aenter__()
            stack.push_async_exit(super().__aexit__)
            await stack.enter_async_context(self._slots)
            await stack.enter_async_context(self._embedder)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def busy_slots(self) -> int:
        """How many answers are being generated, and texts embedded, at this moment. Raises EngineError."""
        servers = (self, self._embedder) if self._generates and self.process.embedder else (self,)
        said = [_read(await server.get("/slots"), list[_Slot]) for server in servers]
        return sum(slot.is_processing for slots in said for slot in slots)

    async def warm_up(self) -> None:
        """A token, a vector, or both. Raises EngineError."""
        if self._generates:
            await super().warm_up()
        if self.process.embedder:
            await self.embed(["Hi"])

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return await self._embedder.embed(texts)

    async def save(self, slot: int, file: str) -> None:
        """Write the state of an idle slot to a file of the folder for snapshots. Raises EngineError."""
        await self._slots.fetch(f"/{slot}?action=save", {"filename": file})

    async def restore(self, slot: int, file: str) -> int:
        """Read it back. Returns how many tokens it is the state of: what does not fit the next prompt is computed anew.
        Raises EngineError."""
        said = await self._slots.fetch(f"/{slot}?action=restore", {"filename": file})
        return _read(said, _Restored).n_restored


def _read(said: bytes, kind: type[T]) -> T:
    """Raises EngineProtocol for anything else."""
    try:
        return msgspec.json.decode(said, type=kind)
    except (msgspec.MsgspecError, RecursionError) as exc:
        raise EngineProtocol(f"The embedded engine's server said what cannot be read: {exc}") from exc


class _Restored(msgspec.Struct):
    n_restored: int = 0


class _Slot(msgspec.Struct):
    is_processing: bool
