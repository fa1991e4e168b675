"""What each part of the engine contract is given: an engine, and a way to know that it is at rest."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

from headrace.engine.port import Engine

_DEADLINE = 60.0


class Subject(ABC):
    @abstractmethod
    def opened(self) -> AbstractAsyncContextManager[Engine]:
        """An engine, entered, for one test."""

    @abstractmethod
    async def idle(self, engine: Engine) -> None:
        """Return as soon as the server behind the engine generates nothing."""

    def run(self, test: Coroutine[Any, Any, None]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(_DEADLINE):
                await test

        asyncio.run(bounded())
