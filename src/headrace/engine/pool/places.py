"""The places of all replicas and the line in front of them.

Everything is decided in `settle`, without waiting. It is called when somebody joins or leaves, a place becomes free, a
replica has failed or is well again, or time alone has changed what one takes.
"""

import asyncio
from collections.abc import Sequence

from headrace.engine.line.caller import Caller, now
from headrace.engine.line.line import Line, too_many
from headrace.engine.pool.choice import choose
from headrace.engine.pool.replica import Replica
from headrace.errors import EngineError, EngineProtocol, EngineUnavailable


class Places:
    """`restart_wait` is how many seconds a request waits while no replica is in service."""

    def __init__(self, replicas: Sequence[Replica], *, max_waiting: int, restart_wait: float) -> None:
        self._replicas = {replica.name: replica for replica in replicas}
        self._max_waiting = max_waiting
        self._restart_wait = restart_wait
        self._line: Line[Caller] = Line()
        self._timer: asyncio.TimerHandle | None = None
        self._out_since: float | None = None  # no replica has been in service since
        self._last_error: EngineError | None = None

    @property
    def waiting(self) -> int:
        return len(self._line)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def join(self, caller: Caller) -> None:
        """Raises EngineOverloaded when too many wait already."""
        self._line.join(caller)
        self.settle()
        if caller.holds is None and self.waiting > self._max_waiting:
            self.leave(caller)
            raise too_many(self._max_waiting)

    def leave(self, caller: Caller) -> None:
        """Out of the line, and with a place that it may have been given there."""
        if caller.holds is not None:
            self.give_back(caller)
        elif caller in self._line:
            self._line.leave(caller)
            self.settle()

    def give_back(self, caller: Caller, error: EngineError | None = None) -> None:
        """The place that it holds; `error` is what its replica failed with."""
        assert caller.holds is not None
        at, replica = now(), self._replicas[caller.holds]
        if error is not None:
            replica.failed(error, at)
            self._last_error = error
        replica.give_back(caller, at)
        self.settle()

    def elsewhere(self, caller: Caller, failed: Replica, error: EngineError) -> bool:
        """Whether another replica may be asked for what this one has failed to do."""
        if not error.retryable and not isinstance(error, EngineProtocol):
            return False  # the request itself is what it refuses
        caller.tried.add(failed.name)
        return any(r.in_service(now()) for r in self._replicas.values() if r.name not in caller.tried)

    def settle(self) -> None:
        """Give out what is free, tell those who wait where they stand, and set the clock for the next time."""
        at = now()
        serving = {replica.name for replica in self._replicas.values() if replica.in_service(at)}
        self._out_since = None if serving else at if self._out_since is None else self._out_since
        while (found := self._next(at, serving)) is not None:
            caller, replica = found
            replica.take(caller, at)
            self._line.went(caller)
            caller.notify()
        if self._out_since is not None:
            self._give_up(at)
        for position, caller in enumerate(self._line.order(), 1):
            caller.stands_at(position)
        self._set_clock(at)

    def _next(self, at: float, serving: set[str]) -> tuple[Caller, Replica] | None:
        """The first in the line whom a replica has room for, and which."""
        if not any(replica.takes_somebody(at) for replica in self._replicas.values()):
            return None
        stuck: set[tuple[bool, frozenset[str]]] = set()
        for caller in self._line.order():
            if serving and serving <= caller.tried:
                caller.tried.clear()  # those that were left to ask are gone
            kind = (caller.patient, frozenset(caller.tried))
            if kind not in stuck:
                loads = [replica.load(caller, at) for replica in self._replicas.values()]
                name = choose([load for load in loads if load.room > 0 or load.name in serving], caller.prefix)
                if name is not None:
                    return caller, self._replicas[name]
                stuck.add(kind)
        return None

    def _give_up(self, at: float) -> None:
        for caller in tuple(self._line.order()):
            if (due := self._due(caller)) is not None and at >= due:
                why = f" ({self._last_error.message})" if self._last_error else ""
                hint = "Are the model servers running? `headrace doctor` asks each of them."
                caller.failure = EngineUnavailable(f"No model server is in service{why}.", hint=hint)
                caller.notify()
                self._line.leave(caller)

    def _due(self, caller: Caller) -> float | None:
        """When it has waited long enough for any replica to be in service."""
        return None if self._out_since is None else max(self._out_since, caller.joined) + self._restart_wait

    def _set_clock(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._line:
            changes = [r.circuit.changes_at(at) for r in self._replicas.values() if not r.draining]
            if self._out_since is not None:
                changes += [self._due(caller) for caller in self._line.order()]
            due = min((change for change in changes if change is not None), default=None)
            if due is not None:
                self._timer = asyncio.get_running_loop().call_at(due, self.settle)
