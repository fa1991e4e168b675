"""The engine for any OpenAI-compatible server.

What is sent is decided in `completion_request.py`; connections are `upstream.py`'s, one answer is
`answer_stream.py`'s, and what its events mean is said in `completion_chunks.py`.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import msgspec

from headrace.engine.admission import require_supported
from headrace.engine.answer_stream import AnswerStream
from headrace.engine.completion_request import completion_body
from headrace.engine.port import Capabilities, Chunk, ModelRequest
from headrace.engine.upstream import Timeouts, Upstream
from headrace.errors import EngineProtocol, EngineTimeout
from headrace.messages import Message

CHAT = Capabilities(tools=True, json_schema=True, thinking=True, embeddings=True)
"""What nearly every compatible server can do. Say more for one that can: vLLM and llama.cpp take raw prompts."""

CONTINUING = msgspec.structs.replace(CHAT, raw_prompt=True, continuation=True)
"""What vLLM, SGLang and llama.cpp's server can do: they go on with an answer that was cut. OpenAI's own API cannot.

Where the model's template trims messages, vLLM loses a blank at the end of what was said, and may say it again.
"""


class OpenAIEngine:
    """Speaks to `base_url`, with or without `/v1`. It owns connections: use it as an async context manager."""

    def __init__(
        self,
        base_url: str,
        *,
        model: str,
        api_key: str | None = None,
        name: str = "openai",
        capabilities: Capabilities = CHAT,
        timeouts: Timeouts | None = None,
        headers: Mapping[str, str] | None = None,
        reuse: bool = True,
    ) -> None:
        self.name = name
        self.model = model
        self.capabilities = capabilities
        self._upstream = Upstream(base_url, api_key=api_key, headers=headers, timeouts=timeouts, reuse=reuse)

    async def __aenter__(self) -> "OpenAIEngine":
        await self._upstream.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._upstream.__aexit__(*exc)

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[Chunk], None]:
        require_supported(request, self.capabilities, engine=self.name)
        async with self.answer(request) as chunks:
            yield chunks

    def answer(self, request: ModelRequest) -> AnswerStream:
        """The stream of a request that is known to be supported."""
        path = "/chat/completions" if request.prompt is None else "/completions"
        body = completion_body(request, model=self.model)
        continued = request.continued is not None
        return AnswerStream(self._upstream, path, body, request_id=request.request_id, continued=continued)

    async def warm_up(self) -> None:
        """One token, to know that the model answers. Raises what `stream` raises."""
        async with self.stream(ModelRequest(messages=(Message(role="user", content="Hi"),), max_tokens=1)) as chunks:
            async for _ in chunks:
                pass

    async def get(self, path: str) -> bytes:
        """What the server itself answers at `path`, outside `/v1`. Raises EngineUnavailable."""
        return await self._upstream.get(path)

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector for each text, in order. Raises what `stream` raises."""
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
    except msgspec.DecodeError as exc:
        raise EngineProtocol(f"The model server's embeddings cannot be read: {exc}") from exc
    if len(rows) != count:
        raise EngineProtocol(f"The model server sent {len(rows)} embeddings for {count} texts.")
    return [row.embedding for row in rows]
