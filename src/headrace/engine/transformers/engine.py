"""The embedded engine for who has weights and nothing else: transformers in a supervised child process.

It reads what the Hugging Face hub has, of nearly every family, as soon as there is a new one. Answers share the
library's continuous batching, or have a cache each that is kept in 8 bits or saved. It is slower than the engines that
were made for serving: take one of those as soon as the model comes in their format.
"""

import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from headrace.engine.memory import require_fits, room
from headrace.engine.models import cache_dir
from headrace.engine.port import PARAMETERS, Chunk, ModelRequest
from headrace.engine.prompts import frame_for, strip_start
from headrace.engine.stepped.engine import SteppedEngine
from headrace.engine.transformers.parameters import Kv, TransformersParameters, Weights
from headrace.engine.transformers.parts import has_chat_template, need, require_libraries, require_model
from headrace.engine.upstream.port import Timeouts


class TransformersEngine(SteppedEngine):
    """Answers with the model at `model_path`: a folder as the Hugging Face hub has it, with safetensors, or a GGUF
    file.

    `weights` and `kv` are how many bits the weights and the cache take. The state of a long answer is saved every
    `snapshot_tokens` in the folder `snapshots`, and read again when the process has died.
    """

    name = "transformers"
    library = "Transformers"
    child = "headrace.engine.transformers.child"
    reads = "It reads causal language models in safetensors that need no code of their own, and GGUF files."

    def __init__(
        self,
        model_path: Path,
        *,
        model: str | None = None,
        weights: Weights = "full",
        kv: Kv = "full",
        threads: int | None = None,
        context: int = 2048,
        slots: int = 4,
        snapshot_tokens: int | None = None,
        snapshots: Path | None = None,
        restart_wait: float = 60.0,
        timeouts: Timeouts | None = None,
        log: Path | None = None,
    ) -> None:
        super().__init__(
            model_path,
            sampling=PARAMETERS,
            model=model,
            threads=threads,
            context=context,
            slots=slots,
            restart_wait=restart_wait,
            timeouts=timeouts,
            log=log,
        )
        self._weights: Weights = weights
        self._kv: Kv = kv
        self._snapshot_tokens = snapshot_tokens
        self._snapshots = snapshots or cache_dir() / "transformers"
        self._base = False

    def require_parts(self) -> None:
        require_libraries(self._weights)
        require_model(self._model_path, weights=self._weights, context=self._context)
        wanted = need(self._model_path, weights=self._weights, kv=self._kv, context=self._context, slots=self._slots)
        require_fits(self.model, wanted, room(), smallest_kv="q8_0")
        self._base = not has_chat_template(self._model_path)

    def parameters(self) -> TransformersParameters:
        return TransformersParameters(
            model_path=str(self._model_path),
            weights=self._weights,
            kv=self._kv,
            threads=self._threads,
            context=self._context,
            slots=self._slots,
            snapshots=str(self._snapshots),
            snapshot_tokens=self._snapshot_tokens,
            parent=os.getpid(),
        )

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[Chunk], None]:
        """Of a base model, which only goes on with a text, a chat becomes a dialogue to go on with."""
        framed = self._base and request.prompt is None and bool(request.messages)
        asked = frame_for(request.messages).apply(request) if framed else request
        async with super().stream(asked) as chunks:
            yield strip_start(chunks) if framed and request.continued is None else chunks
