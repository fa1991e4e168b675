"""For operators: how the model servers are doing, and taking one out of service (PROTOCOL.md, "Model servers").

Draining is a wish that is recorded at once; whoever asks may wait for it, and may go without taking it back. A replica
comes back when it is resumed, which ends any wait for its drain.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from headrace.errors import Forbidden, NoReplicas, ReplicaConflict, UnknownReplica
from headrace.http.app import Route
from headrace.http.exchange import Exchange
from headrace.http.waiting import before_the_client_leaves

IN_SERVICE = frozenset({"closed", "warming"})
"""States of a replica that gets requests."""

MAX_WAIT_S = 300
"""The longest `?wait=`, in seconds."""


class Standing(Protocol):
    """How a replica is doing. What else it has is shown too."""

    @property
    def name(self) -> str: ...

    @property
    def state(self) -> str:
        """One of IN_SERVICE, or another word."""
        ...

    @property
    def active(self) -> int:
        """How much it is working on: it may be stopped when this is 0 and it is draining."""
        ...

    @property
    def draining(self) -> bool: ...


class Replicas(Protocol):
    """The model servers that this server chooses from, each with a name. Only `standings` takes none of them for
    granted: the others are asked for names that it has."""

    def standings(self) -> Sequence[Standing]:
        """One for each replica and model. Empty where there is nothing to choose from."""
        ...

    def is_last(self, name: str) -> bool:
        """Whether it is in service, and a model would have no replica without it."""
        ...

    def drain(self, name: str) -> None:
        """Give it no more requests. Again changes nothing."""
        ...

    def resume(self, name: str) -> None:
        """Give a drained one requests again, once it is fit. Nothing happens to one that is not drained."""
        ...

    async def settles(self, name: str) -> bool:
        """Wait until it has no more work, or is in service, as it was told. False if it is told otherwise meanwhile."""
        ...


class ReplicaBody(msgspec.Struct, forbid_unknown_fields=True):
    replica: str


class DrainBody(msgspec.Struct, forbid_unknown_fields=True):
    """`force` drains also the last one in service."""

    replica: str
    force: bool = False


class ReplicasApi:
    """`operators` are the tenants that may; nobody else, and nobody at all without API keys."""

    def __init__(self, replicas: Replicas, *, operators: Collection[str]) -> None:
        self._replicas = replicas
        self._operators = frozenset(operators)

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/v1/replicas", self.list),
            Route("POST", "/v1/replicas/drain", self.drain),
            Route("POST", "/v1/replicas/resume", self.resume),
        ]

    async def list(self, exchange: Exchange) -> None:
        self._admit(exchange)
        await exchange.answer({"replicas": self._standings()})

    async def drain(self, exchange: Exchange) -> None:
        """200 once it has no more work, 202 while it has."""
        self._admit(exchange)
        wait = exchange.query_int("wait", 0, low=0, high=MAX_WAIT_S)
        body = exchange.decode(await exchange.body(), DrainBody)
        self._of(body.replica)
        if self._replicas.is_last(body.replica) and not body.force:
            raise ReplicaConflict(
                f"{body.replica} is the last replica in service.",
                hint='Resume another one first, or send "force": true: requests then wait, and fail after a while.',
            )
        self._replicas.drain(body.replica)
        await self._answer(exchange, body.replica, wait, drains=True)

    async def resume(self, exchange: Exchange) -> None:
        """200 once it is in service, 202 as long as it has not said its token."""
        self._admit(exchange)
        wait = exchange.query_int("wait", 0, low=0, high=MAX_WAIT_S)
        body = exchange.decode(await exchange.body(), ReplicaBody)
        self._of(body.replica)
        self._replicas.resume(body.replica)
        await self._answer(exchange, body.replica, wait, drains=False)

    async def _answer(self, exchange: Exchange, name: str, wait: float, *, drains: bool) -> None:
        """How it stands after so many seconds, or before them once it is where it was told to be."""
        if wait:
            await before_the_client_leaves(exchange, self._replicas.settles(name), within=wait)
        standings = self._of(name)
        if any(standing.draining != drains for standing in standings):
            told = "resumed" if drains else "drained"
            raise ReplicaConflict(f"{name} was {told} meanwhile.", hint="Another operator has asked for it.")
        there = all(not one.active if drains else one.state in IN_SERVICE for one in standings)
        await exchange.answer({"replicas": standings}, status=200 if there else 202)

    def _admit(self, exchange: Exchange) -> None:
        """Raises Forbidden."""
        if exchange.tenant not in self._operators:
            raise Forbidden(
                "Only operators may see and drain the model servers.",
                hint="Give the caller a key in auth.keys, and name it in auth.operators.",
            )

    def _standings(self) -> Sequence[Standing]:
        """Raises NoReplicas."""
        standings = self._replicas.standings()
        if not standings:
            raise NoReplicas(
                "This server has no replicas: one model server, or the embedded model, answers all requests.",
                hint="Name several servers in engine.url.",
            )
        return standings

    def _of(self, name: str) -> Sequence[Standing]:
        """Raises UnknownReplica, NoReplicas."""
        standings = self._standings()
        named = [standing for standing in standings if standing.name == name]
        if not named:
            known = ", ".join(dict.fromkeys(standing.name for standing in standings))
            raise UnknownReplica(f"There is no replica {name[:200]!r}.", hint=f"This server has: {known}.")
        return named
