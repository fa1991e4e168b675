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
from headrace.engine.port import PARAMETERS, Capabilities, Chunk, ModelRequest
from headrace.engine.seam import Seam, split_blanks
from headrace.engine.upstream import Timeouts, Upstream
from headrace.errors import EngineError, EngineProtocol, EngineTimeout
from headrace.messages import Message

CHAT = Capabilities(
    tools=True,
    sampling=PARAMETERS,
    logprobs=True,
    json_schema=True,
    thinking=True,
    embeddings=True,
)
"""What nearly every compatible server can do. Say more for one that can: vLLM and llama.cpp take raw prompts."""

CONTINUING = msgspec.structs.replace(CHAT, raw_prompt=True, continuation=True)
"""What vLLM, SGLang and llama.cpp's server can do: they go on with an answer that was cut. OpenAI's own API cannot."""

_CONTINUING_SERVERS = frozenset({"vllm", "sglang", "llamacpp"})
"""What they call themselves, as the owner of each of their models."""

_INTRODUCTION = 2.0  # seconds in which a server says what it is


class OpenAIEngine:
    """Speaks to `base_url`, with or without `/v1`. It owns connections: use it as an async context manager.

    With `capabilities` None the server is asked what it is: on entering, and before later answers as long as it could
    not be reached. `keeps_blanks` says that the blanks at the end of what was said reach the model: most chat templates
    trim them.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str,
        api_key: str | None = None,
        name: str = "openai",
        capabilities: Capabilities | None = CHAT,
        keeps_blanks: bool = False,
        timeouts: Timeouts | None = None,
        headers: Mapping[str, str] | None = None,
        reuse: bool = True,
    ) -> None:
        self.name = name
        self.model = model
        self.capabilities = capabilities or CHAT
        self._known = capabilities is not None
        self._keeps_blanks = keeps_blanks
        self._upstream = Upstream(base_url, api_key=api_key, headers=headers, timeouts=timeouts, reuse=reuse)

    async def __aenter__(self) -> "OpenAIEngine":
        await self._upstream.__aenter__()
        await self._get_to_know()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._upstream.__aexit__(*exc)

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[Chunk], None]:
        await self._get_to_know()
        require_supported(request, self.capabilities, engine=self.name)
        async with self.answer(request) as chunks:
            yield chunks

    def answer(self, request: ModelRequest) -> AnswerStream:
        """The stream of a request that is known to be supported."""
        path = "/chat/completions" if request.prompt is None else "/completions"
        seam = None
        if request.continued is not None:
            trimmed = request.prompt is None and not self._keeps_blanks
            said, blanks = split_blanks(request.continued) if trimmed else (request.continued, "")
            request, seam = msgspec.structs.replace(request, continued=said), Seam(blanks)
        body = completion_body(request, model=self.model)
        return AnswerStream(self._upstream, path, body, request_id=request.request_id, start=seam)

    async def _get_to_know(self) -> None:
        """Find out what the server can do, unless that is known."""
        if self._known:
            return
        try:
            async with asyncio.timeout(_INTRODUCTION):
                listed = await self.get(f"{self._upstream.base_url}/models")
        except (EngineError, TimeoutError):
            return
        goes_on = _goes_on(listed)
        self._known = goes_on is not None
        self.capabilities = CONTINUING if goes_on else CHAT

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


class _Model(msgspec.Struct):
    owned_by: str = ""


class _Models(msgspec.Struct):
    data: list[_Model]


def _goes_on(listed: bytes) -> bool | None:
    """Whether a list of models is that of a server that goes on with an answer; None for what no API says, such as a
    proxy's page about a server that is not up yet."""
    try:
        owners = {model.owned_by for model in msgspec.json.decode(listed, type=_Models).data}
    except msgspec.ValidationError:
        return False
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return bool(owners) and owners <= _CONTINUING_SERVERS


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
