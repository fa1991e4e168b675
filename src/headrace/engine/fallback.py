"""Another model when the one that should answer cannot.

The models are asked in order, until one says something. Who answers in another's place is told (`Routed`), so that
nobody takes its words for the other's. An answer that was cut is only ever continued by the model that has begun it; if
that one cannot, the caller is refused, and may ask for the whole answer again.
"""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import cast

import msgspec

from headrace.engine.admission import require_supported
from headrace.engine.port import Capabilities, Chunk, Embedder, Engine, Keeping, ModelRequest, Queued, Routed
from headrace.errors import ConfigError, EngineError, EngineProtocol, EngineRejected

_log = logging.getLogger(__name__)


class Fallback:
    """`engines` are the one that should answer and those that stand in for it, in order. A request's `model` is the
    first one's affair; the others answer with their own. Those that cannot do what a request asks for are passed over.
    """

    def __init__(self, engines: Sequence[Engine]) -> None:
        if not engines:
            raise ConfigError("A chain of models needs at least one.", hint="Give it engines.")
        self.engines = tuple(engines)
        self._stack = AsyncExitStack()

    @property
    def name(self) -> str:
        return self.engines[0].name

    @property
    def model(self) -> str:
        return self.engines[0].model

    @property
    def capabilities(self) -> Capabilities:
        """The first one's."""
        return self.engines[0].capabilities

    async def __aenter__(self) -> "Fallback":
        async with AsyncExitStack() as stack:
            for engine in self.engines:
                await stack.enter_async_context(engine)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    def keep(self) -> None:
        for engine in self.engines:
            if isinstance(engine, Keeping):
                engine.keep()

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[Chunk], None]:
        """Raises what the last engine raised that could be asked."""
        require_supported(request, self.capabilities, engine=self.name)
        answer = self._answer(request) if request.continued is None else self._rest(request)
        async with aclosing(answer) as chunks:
            yield chunks

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """By the first one alone: the vectors of two models cannot be compared. Raises what `stream` raises."""
        if not self.capabilities.embeddings:
            raise EngineRejected(f"The model {self.model} makes no embeddings.", hint="Name a server that does.")
        return await cast(Embedder, self.engines[0]).embed(texts)

    async def _rest(self, request: ModelRequest) -> AsyncGenerator[Chunk, None]:
        began = next((engine for engine in self.engines if engine.model == request.model), self.engines[0])
        spoke = False
        try:
            async with began.stream(request) as chunks:
                async for chunk in chunks:
                    spoke = spoke or not isinstance(chunk, Queued | Routed)
                    yield chunk
        except EngineError as error:
            if spoke or len(self.engines) == 1 or not _another_may_do_better(error):
                raise
            raise EngineRejected(
                f"The model {began.model} cannot go on with its answer: {error.message}",
                hint="Ask for the whole answer: another model gives it.",
            ) from error

    async def _answer(self, request: ModelRequest) -> AsyncGenerator[Chunk, None]:
        failure: EngineError | None = None
        for engine in self.engines:
            if failure is not None and not _able(engine, request):
                continue
            asked = request if failure is None else msgspec.structs.replace(request, model=None)
            spoke = False
            try:
                async with engine.stream(asked) as chunks:
                    async for chunk in chunks:
                        if not spoke and not isinstance(chunk, Queued | Routed):
                            spoke = True
                            if failure is not None:
                                yield Routed(model=engine.model, why=failure.code, fallback_of=self.model)
                        yield chunk
                return
            except EngineError as error:
                if spoke or not _another_may_do_better(error):
                    raise
                _log.warning("the model %s cannot answer: %s", engine.model, error.message)
                failure = error
        assert failure is not None
        raise failure


def _able(engine: Engine, request: ModelRequest) -> bool:
    try:
        require_supported(request, engine.capabilities, engine=engine.name)
    except EngineRejected:
        return False
    return True


def _another_may_do_better(error: EngineError) -> bool:
    return error.retryable or isinstance(error, EngineProtocol)
