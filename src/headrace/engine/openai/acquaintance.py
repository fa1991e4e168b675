"""What is known of a server so far, and when it is asked for the rest (`introduction.py`)."""

import asyncio
import math

from headrace.engine.openai.introduction import introduce
from headrace.engine.port import Capabilities
from headrace.engine.presets import CHAT, Preset
from headrace.engine.spelling import PLAIN, Spelling
from headrace.engine.upstream.port import Upstream

AGAIN_S = 10.0
"""After which a server that had not said everything is asked again."""


class Acquaintance:
    """With `able` None the server is asked what it is and how much it holds; with `preset`, whose server it is, only
    how much that is; with `able` and no `preset` it is asked nothing. `spelling` is how it spells a request, if that is
    known.

    An async context manager: it owns the question that is asked beside the answers.
    """

    def __init__(
        self,
        upstream: Upstream,
        *,
        model: str,
        able: Capabilities | None,
        preset: Preset | None,
        spelling: Spelling | None,
    ) -> None:
        self.capabilities = able or CHAT
        self.spelling = spelling or PLAIN
        self._upstream = upstream
        self._model = model
        self._able = able
        self._preset = preset
        self._asks = able is None or preset is not None
        self._complete = not self._asks
        self._met = preset is not None
        self._asked = -math.inf  # loop time
        self._group: asyncio.TaskGroup | None = None
        self._question: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Acquaintance":
        self._group = await asyncio.TaskGroup().__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._question is not None:
            self._question.cancel()
        if self._group is not None:
            await self._group.__aexit__(None, None, None)  # a failure elsewhere is not the question's

    async def ask(self) -> None:
        """Have the server say what it is and holds, unless that is known."""
        if self._complete:
            return
        self._asked = asyncio.get_running_loop().time()
        told = await introduce(self._upstream, model=self._model, preset=self._preset)
        if told is None:
            return
        self._complete, self._met = told.complete, True
        if self._able is None and told.preset is not None:
            self._preset, self._able, self.spelling = told.preset, told.preset.capabilities, told.preset.spelling
        self.capabilities = told.completes(self._able or CHAT, before=self.capabilities)

    async def refresh(self) -> None:
        """Before an answer. A stranger is asked until it says something, because nobody knows how it wants to be
        spoken to; whoever was met is asked for the rest now and then, and no answer waits for that."""
        if self._complete:
            return
        if not self._met:
            await self.ask()
        elif self._is_due and self._group is not None:
            self._question = self._group.create_task(self.ask(), name="introduction")

    def was_gone(self) -> None:
        """It may come back with other settings."""
        self._complete = not self._asks

    @property
    def _is_due(self) -> bool:
        asking = self._question is not None and not self._question.done()
        return not asking and asyncio.get_running_loop().time() >= self._asked + AGAIN_S
