"""The engine for any OpenAI-compatible server.

What is sent is decided in `request.py`; connections are `upstream/`'s, one answer is
`answer/stream.py`'s, and what its events mean is said in `chunks.py`.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import msgspec

from headrace.engine.admission import require_supported, require_texts
from headrace.engine.answer.stream import AnswerStream
from headrace.engine.line.engine_line import EngineLine
from headrace.engine.openai.acquaintance import Acquaintance
from headrace.engine.openai.chunks import CompletionChunks
from headrace.engine.openai.introduction import WITHIN_S, listed
from headrace.engine.openai.request import completion_body
from headrace.engine.port import Capabilities, Chunk, ModelRequest
from headrace.engine.presets import CHAT, Preset
from headrace.engine.seam import Seam, split_blanks
from headrace.engine.spelling import Spelling
from headrace.engine.thoughts import Thoughts
from headrace.engine.upstream.failures import shown
from headrace.engine.upstream.loopback import LoopbackUpstream
from headrace.engine.upstream.pooled import PooledUpstream
from headrace.engine.upstream.port import Timeouts, Upstream
from headrace.engine.warm_up import WITHIN_S as TOKEN_WITHIN_S
from headrace.engine.warm_up import say, say_a_token
from headrace.errors import EngineDied, EngineError, EngineProtocol, EngineTimeout, EngineUnavailable

_log = logging.getLogger(__name__)


class OpenAIEngine:
    """Speaks to `base_url`, with or without `/v1`. It owns connections: use it as an async context manager.

    With `capabilities` None the server is asked what it is and how much it holds; with `preset`, whose server it is,
    only how much that is. `capabilities` has its answer as soon as it is known: it is asked on entering and, as long as
    it has not said everything, beside later answers, and again when it was gone. Nothing fails for want of an answer.
    With `capabilities` and no `preset` it is asked nothing. More requests than it has slots, if that is known, wait in
    line.

    `spelling` is how it spells a request, if that is known. `keeps_blanks` says that the blanks at the end of what was
    said reach the model: most chat templates trim them. `loopback` says that it is a process of ours on this machine
    (`upstream/loopback.py`). With `warm` a server that is up says a token when the engine is entered: what its hardware
    cannot compute is found then and not by the first user.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str,
        api_key: str | None = None,
        name: str = "openai",
        capabilities: Capabilities | None = CHAT,
        preset: Preset | None = None,
        spelling: Spelling | None = None,
        keeps_blanks: bool = False,
        timeouts: Timeouts | None = None,
        headers: Mapping[str, str] | None = None,
        loopback: bool = False,
        warm: bool = False,
    ) -> None:
        self.name = name
        self.model = model
        self._keeps_blanks = keeps_blanks
        self._thoughts = Thoughts()
        self._warm = warm
        kind = LoopbackUpstream if loopback else PooledUpstream
        self._upstream: Upstream = kind(base_url, api_key=api_key, headers=headers, timeouts=timeouts)
        self._server = Acquaintance(self._upstream, model=model, able=capabilities, preset=preset, spelling=spelling)
        self._line = EngineLine(self.capabilities.slots)
        self._open = AsyncExitStack()

    @property
    def base_url(self) -> str:
        """Of its API, with `/v1`."""
        return self._upstream.base_url

    @property
    def capabilities(self) -> Capabilities:
        """As far as it is known."""
        return self._server.capabilities

    async def __aenter__(self) -> "OpenAIEngine":
        """Raises EngineError if it shall be warm and cannot say a token."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._upstream)
            await stack.enter_async_context(self._server)
            await self._server.ask()
            if self._warm and await self._is_up():
                await say_a_token(self, within=TOKEN_WITHIN_S)
            self._open = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._open.aclose()

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[Chunk], None]:
        await self._server.refresh()
        require_supported(request, self.capabilities, engine=self.name)
        self._line.set_places(self.capabilities.slots)
        try:
            async with self._line.placed(request, self.answer(request)) as chunks:
                yield chunks
        except (EngineUnavailable, EngineDied):
            self._server.was_gone()
            raise

    def answer(self, request: ModelRequest) -> AnswerStream:
        """The stream of a request that is known to be supported."""
        path = "/chat/completions" if request.prompt is None else "/completions"
        seam = None
        if request.continued is not None:
            trimmed = request.prompt is None and not self._keeps_blanks
            said, blanks = split_blanks(request.continued) if trimmed else (request.continued, "")
            request, seam = msgspec.structs.replace(request, continued=said), Seam(blanks)
        behind = partial(self._thoughts.behind, request.session)
        remember = partial(self._thoughts.keep, request.session) if self._server.spelling.call else None
        body = completion_body(request, model=self.model, spelling=self._server.spelling, behind=behind)
        reader = CompletionChunks(start=seam, stops=request.stop, remember=remember)
        return AnswerStream(self._upstream, path, body, reader, request_id=request.request_id)

    async def _is_up(self) -> bool:
        try:
            async with asyncio.timeout(WITHIN_S):
                await self.models()
        except (EngineError, TimeoutError) as exc:
            _log.warning("the model server at %s is not up yet: %s", shown(self._upstream.base_url), exc)
            return False
        return True

    async def warm_up(self) -> None:
        """One token, to know that the model answers. Raises what `stream` raises."""
        await say(self, tokens=1)

    async def get(self, path: str) -> bytes:
        """What the server itself answers at `path`, outside `/v1`. Raises EngineUnavailable."""
        return await self._upstream.get(path)

    async def models(self) -> list[str]:
        """The names of the models that the server lists, if it does. Raises EngineUnavailable, EngineDied."""
        return [model.id for model in listed(await self.get(f"{self._upstream.base_url}/models")) or () if model.id]

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector for each text, in order. Raises what `stream` raises, and EngineRejected for an empty text."""
        require_texts(texts)
        if not texts:
            return []
        body = {"input": list(texts), "model": self.model, "encoding_format": "float"}
        limit = self._upstream.timeouts.first_token
        try:
            async with asyncio.timeout(limit):
                answer = await self._upstream.fetch("/embeddings", body)
        except TimeoutError as exc:
            raise EngineTimeout(f"No embedding came within {limit:g} s.") from exc
        return _vectors(answer, len(texts))


class _Embedding(msgspec.Struct):
    index: int
    embedding: list[float]


class _Embeddings(msgspec.Struct):
    data: list[_Embedding]


def _vectors(answer: bytes, count: int) -> list[list[float]]:
    try:
        rows = sorted(msgspec.json.decode(answer, type=_Embeddings).data, key=lambda row: row.index)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise EngineProtocol(f"The model server's embeddings cannot be read: {exc}") from exc
    if len(rows) != count:
        raise EngineProtocol(f"The model server sent {len(rows)} embeddings for {count} texts.")
    return [row.embedding for row in rows]
