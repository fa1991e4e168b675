"""Tasks that live and end together, failing with one exception that has a name."""

import asyncio
from types import TracebackType


class Group(asyncio.TaskGroup):
    """A TaskGroup that raises the first failure itself, not an ExceptionGroup around it: one failure cancels the
    others, so there is one cause, and what catches it wants its class."""

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await super().__aexit__(kind, exc, traceback)
        except BaseExceptionGroup as failures:
            raise _first(failures) from None


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    failure = failures.exceptions[0]
    return _first(failure) if isinstance(failure, BaseExceptionGroup) else failure
