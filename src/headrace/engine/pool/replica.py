"""One engine of a pool: what it is doing, how many more requests it takes, and whether it can answer at all."""

import asyncio
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from headrace.engine.line.line import Waiter, patient_places
from headrace.engine.pool.choice import Load
from headrace.engine.pool.circuit import Circuit, Patience, State
from headrace.engine.port import Engine
from headrace.errors import ContextOverflow, EngineError, EngineOverloaded, EngineRejected

_log = logging.getLogger(__name__)

_REMEMBERED = 10_000  # prefixes, the latest ones; a number for each

DEFAULT_LIMIT = 64
"""Answers at once at a replica that does not say how many slots it has."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How a replica is doing: `active` answers of its `model` are under way, embeddings among them, and it may give
    `size` at once just now, embeddings apart. `waiting` requests wait for a place at any replica of its model. One that
    is `draining` gets no more requests, and is drained when `active` is 0."""

    name: str
    model: str
    state: State
    active: int
    size: int
    draining: bool
    waiting: int


class Replica:
    """`active` answers are under way, `patient` of them with nobody waiting for them, and so many `embedding`s, which
    take no place. It gives at most `limit` answers at once, with None as many as its engine has slots. It was told to
    drain `drains` times, which counts those when it did already."""

    def __init__(self, name: str, engine: Engine, *, limit: int | None, patience: Patience) -> None:
        self.name = name
        self.engine = engine
        self._wanted = limit
        self.circuit = Circuit(self._said, patience)
        self.active = 0
        self.patient = 0
        self.embedding = 0
        self.draining = False
        self.drains = 0
        self._answered: dict[int, float] = {}  # hash of a prefix → when it last answered a request with it
        self._orders = 0  # how often it was told otherwise: to drain, or to come back
        self._news = asyncio.Event()  # the next change; another one for each

    @property
    def limit(self) -> int:
        """How many answers it gives at once at most."""
        return self.circuit.limit

    @property
    def _said(self) -> int:
        return self._wanted or self.engine.capabilities.slots or DEFAULT_LIMIT

    def learn_limit(self) -> bool:
        """Ask its engine for its slots, which some know only once their server is up. Whether their number is new."""
        before, self.circuit.limit = self.circuit.limit, self._said
        return self.circuit.limit != before

    @property
    def well(self) -> bool:
        """Whether it answers, as far as is known."""
        return not self.draining and self.circuit.state in ("closed", "warming")

    @property
    def _work(self) -> int:
        """How many answers and embeddings are under way."""
        return self.active + self.embedding

    @property
    def settled(self) -> bool:
        """Whether it is where it was told to be: in service, or out of it and without work."""
        return not self._work if self.draining else self.well

    def drain(self) -> None:
        """Give it no more requests."""
        self.drains += 1
        if not self.draining:
            self.draining = True
            self._orders += 1
            self._tell()

    def resume(self) -> None:
        """Give it requests again, as far as its circuit lets them."""
        if self.draining:
            self.draining = False
            self._orders += 1
            self._tell()

    async def settles(self) -> bool:
        """Wait until it is where it was told to be. False if it is told otherwise meanwhile."""
        orders = self._orders
        while orders == self._orders and not self.settled:
            await self._news.wait()
        return orders == self._orders

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
        last = self._answered.get(hash(waiter.prefix), -math.inf)
        return Load(name=self.name, active=active, size=size, room=room, last=last)

    def standing(self, now: float, *, waiting: int) -> Standing:
        return Standing(
            name=self.name,
            model=self.engine.model,
            state=self.circuit.state,
            active=self._work,
            size=self.circuit.size(now),
            draining=self.draining,
            waiting=waiting,
        )

    def take(self, waiter: Waiter, now: float) -> None:
        """Give the waiter a place."""
        waiter.holds = self.name
        self.active += 1
        self.patient += waiter.patient
        self.circuit.asked(now)
        waiter.on_trial = self.circuit.state == "half_open"

    def give_back(self, waiter: Waiter, now: float) -> None:
        """Its place is free again, however its answer ended."""
        waiter.holds = None
        self.active -= 1
        self.patient -= waiter.patient
        if waiter.on_trial:
            self.circuit.left(now)
        self._has_less_work()

    @contextmanager
    def embeds(self) -> Iterator[None]:
        """It makes embeddings meanwhile."""
        self.embedding += 1
        try:
            yield
        finally:
            self.embedding -= 1
            self._has_less_work()

    def failed(self, error: EngineError, now: float) -> None:
        """Draw the conclusions. A refused request is the caller's affair."""
        if isinstance(error, EngineOverloaded):
            self.circuit.overloaded(now, error.retry_after)
        elif not isinstance(error, EngineRejected | ContextOverflow):
            was = self.circuit.state
            self.circuit.failed(now)
            if self.circuit.state == "open" != was:
                _log.warning("the model server %s is left alone for a while: %s", self.name, error.message)

    def remember(self, prefix: str, now: float) -> None:
        """It has this prefix in its cache."""
        self._answered.pop(key := hash(prefix), None)
        self._answered[key] = now
        if len(self._answered) > _REMEMBERED:
            del self._answered[next(iter(self._answered))]

    def spoke(self, now: float) -> None:
        """It has said something."""
        again = self.circuit.state in ("open", "half_open")
        self.circuit.spoke(now)
        if again:
            _log.warning("the model server %s answers again", self.name)
            self._tell()

    def _has_less_work(self) -> None:
        if not self._work:
            self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
