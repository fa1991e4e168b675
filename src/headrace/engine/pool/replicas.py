"""The replicas of all pools in a process, as operators know them: by their names.

Two pools may have the same server, when it serves two models. It is one machine that goes out of service, so whatever
is told to a name is told to both.
"""

from collections.abc import Iterable, Iterator

from headrace.engine.fallback import Fallback
from headrace.engine.pool.pool import EnginePool
from headrace.engine.pool.replica import Standing


class Replicas:
    """Of every pool among these engines, and behind a fallback. Names that no pool has do nothing."""

    def __init__(self, engines: Iterable[object]) -> None:
        self._pools = [*{id(pool): pool for pool in _pools(engines)}.values()]

    def standings(self) -> list[Standing]:
        """One for each replica and model. Empty if there is no pool."""
        return [standing for pool in self._pools for standing in pool.standings()]

    def is_last(self, name: str) -> bool:
        """Whether it is in service, and a model would have no replica without it."""
        return any(pool.is_last(name) for pool in self._with(name))

    def drain(self, name: str) -> None:
        """Give it no more requests."""
        for pool in self._with(name):
            pool.drain_nowait(name)

    def resume(self, name: str) -> None:
        """Give it requests again once it has said a token."""
        for pool in self._with(name):
            pool.resume_nowait(name)

    async def settles(self, name: str) -> bool:
        """Wait until it is drained or in service, as it was told. False if it is told otherwise meanwhile."""
        for pool in self._with(name):
            if not await pool.settles(name):
                return False
        return True

    def _with(self, name: str) -> list[EnginePool]:
        return [pool for pool in self._pools if any(standing.name == name for standing in pool.standings())]


def _pools(engines: Iterable[object]) -> Iterator[EnginePool]:
    for engine in engines:
        if isinstance(engine, EnginePool):
            yield engine
        elif isinstance(engine, Fallback):
            yield from _pools(engine.engines)
