"""The engine for Anthropic's Messages API, and for servers that speak it.

What is sent is decided in `request.py`, and what the events mean is said in `events.py`;
connections and time are the same as for every other server.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec

from headrace.engine.admission import require_supported
from headrace.engine.answer.stream import AnswerStream
from headrace.engine.anthropic.claude_models import claude_capabilities
from headrace.engine.anthropic.events import MessageEvents
from headrace.engine.anthropic.request import messages_body
from headrace.engine.port import Chunk, ModelRequest
from headrace.engine.presets import ANTHROPIC
from headrace.engine.seam import Seam, split_blanks
from headrace.engine.thoughts import Thoughts
from headrace.engine.upstream.pooled import PooledUpstream
from headrace.engine.upstream.port import Timeouts
from headrace.engine.warm_up import say

_VERSION = "2023-06-01"


class AnthropicEngine:
    """Speaks to `base_url`. It owns connections: use it as an async context manager.

    `max_tokens` is for requests that name none, because the API wants a number. `thinking` is the API's own object,
    `{"type": "adaptive"}`, or for older models `{"type": "enabled", "budget_tokens": 2048}`. What the model can do goes
    by its name and by whether it thinks.
    """

    def __init__(
        self,
        base_url: str = ANTHROPIC.url,
        *,
        model: str,
        api_key: str | None = None,
        name: str = ANTHROPIC.name,
        max_tokens: int = 4096,
        thinking: Mapping[str, Any] | None = None,
        continuation: bool | None = None,
        timeouts: Timeouts | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.model = model
        self.capabilities = claude_capabilities(model, thinking=thinking, continuation=continuation)
        self._max_tokens = max_tokens
        self._thinking = thinking
        self._thoughts = Thoughts()
        key = {"x-api-key": api_key} if api_key else {}
        self._upstream = PooledUpstream(
            base_url, headers={"anthropic-version": _VERSION, **key, **(headers or {})}, timeouts=timeouts
        )

    async def __aenter__(self) -> "AnthropicEngine":
        await self._upstream.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._upstream.__aexit__(*exc)

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[Chunk], None]:
        require_supported(request, self.capabilities, engine=self.name)
        seam = None
        if request.continued is not None:
            said, blanks = split_blanks(request.continued)  # the API refuses blanks at the end
            request, seam = msgspec.structs.replace(request, continued=said), Seam(blanks)
        body = messages_body(
            request,
            model=self.model,
            max_tokens=self._max_tokens,
            thinking=self._thinking,
            behind=partial(self._thoughts.behind, request.session),
        )
        reader = MessageEvents(start=seam, stops=request.stop, remember=partial(self._thoughts.keep, request.session))
        async with AnswerStream(self._upstream, "/messages", body, reader, request_id=request.request_id) as chunks:
            yield chunks

    async def warm_up(self) -> None:
        """One token, to know that the model answers. Raises what `stream` raises."""
        await say(self, tokens=1)
