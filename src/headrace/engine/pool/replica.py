"""One engine of a pool: what it is doing, how many more requests it takes, and whether it can answer at all."""

import asyncio
import logging

import msgspec

from headrace.engine.line.line import Waiter, patient_places
from headrace.engine.pool.choice import Load
from headrace.engine.pool.circuit import Circuit, Patience, State
from headrace.engine.port import Engine
from headrace.errors import ContextOverflow, EngineError, EngineOverloaded, EngineRejected

_log = logging.getLogger(__name__)

class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How a replica is doing. `size` is how many answers it may give at once just now."""

    name: str
    state: State
    active: int
    size: int
    draining: bool


class Replica:
    """`active` answers are under way, `patient` of them with nobody waiting for them."""

    def __init__(self, name: str, engine: Engine, *, limit: int, patience: Patience) -> None:
        self.name = name
        self.engine = engine
        self.limit = limit
        self.circuit = Circuit(limit, patience)
        self.active = 0
        self.patient = 0
        self.draining = False
        self.idle = asyncio.Event()
        self.idle.set()

    @property
    def well(self) -> bool:
        """Whether it answers, as far as is known."""
        return not self.draining and self.circuit.state in ("closed", "warming")

    def in_service(self, now: float) -> bool:
        return not self.draining and self.circuit.in_service(now)

    def takes_somebody(self, now: float) -> bool:
        return not self.draining and self.circuit.room(self.active, now) > 0

    def load(self, waiter: Waiter, now: float) -> Load:
        size = self.circuit.size(now)
        room = 0 if self.draining or self.name in waiter.tried else self.circuit.room(self.active, now)
        if waiter.patient:
            room = min(room, patient_places(size) - self.patient)
        # To be tried it need not be idle: what it still answers is from before its failures.
        active = 0 if self.circuit.state == "open" else self.active
        return Load(name=self.name, active=active, size=size, room=room)

    def standing(self, now: float) -> Standing:
        size = self.circuit.size(now)
        return Standing(name=self.name, state=self.circuit.state, active=self.active, size=size, draining=self.draining)

    def take(self, waiter: Waiter, now: float) -> None:
        """Give the waiter a place."""
        waiter.holds = self.name
        self.active += 1
        self.patient += waiter.patient
        self.idle.clear()
        self.circuit.asked(now)
        waiter.on_trial = self.circuit.state == "half_open"

    def give_back(self, waiter: Waiter, now: float) -> None:
        """Its place is free again, however its answer ended."""
        waiter.holds = None
        self.active -= 1
        self.patient -= waiter.patient
        if waiter.on_trial:
            self.circuit.left(now)
        if not self.active:
            self.idle.set()

    def failed(self, error: EngineError, now: float) -> None:
        """Draw the conclusions. A refused request is the caller's affair."""
        if isinstance(error, EngineOverloaded):
            self.circuit.overloaded(now, error.retry_after)
        elif not isinstance(error, EngineRejected | ContextOverflow):
            was = self.circuit.state
            self.circuit.failed(now)
            if self.circuit.state == "open" != was:
                _log.warning("the model server %s is left alone for a while: %s", self.name, error.message)

    def spoke(self, now: float) -> None:
        """It has said something."""
        if self.circuit.state in ("open", "half_open"):
            _log.warning("the model server %s answers again", self.name)
        self.circuit.spoke(now)
