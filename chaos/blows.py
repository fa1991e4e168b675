"""What is done to the processes: when, to which and what, drawn from the seed."""

import asyncio
import random
import time
from collections.abc import Iterator, Sequence

from chaos.evidence import Blow, Kind
from chaos.process import Process, Role

_CHOICES: tuple[tuple[int, Role, Kind], ...] = (
    (60, "instance", "kill"),
    (18, "instance", "pause"),
    (4, "instance", "leave"),
    (10, "store", "kill"),
    (6, "front", "reload"),
    (2, "front", "kill"),
)
"""How often each, in relation to the others."""
_LONGEST_PAUSE_S = 6.0
"""Twice the lease: half of the pauses cost an instance its runs."""
_LONGEST_ABSENCE_S = 1.5
_LOOK_S = 0.05


class Blows:
    """Strikes until `kills` processes were killed or frozen; `struck` is what was done, each blow once it is over."""

    def __init__(self, processes: Sequence[Process], chance: random.Random) -> None:
        self.struck: list[Blow] = []
        self.kills = 0
        self._processes = processes
        self._chance = chance
        self._busy: set[Process] = set()

    async def strike_all(self, kills: int, seconds: float) -> None:
        """Returns when everything is up again."""
        async with asyncio.TaskGroup() as group:
            for wait in waits(self._chance, seconds / max(1, kills)):
                if self.kills >= kills:
                    return
                await asyncio.sleep(wait)
                process, kind = await self._target()
                self.kills += kind in ("kill", "pause")
                self._busy.add(process)
                group.create_task(self._strike(process, kind, self._chance.random()))

    async def _target(self) -> tuple[Process, Kind]:
        """Some process that nothing is being done to. All instances may be down at once."""
        while True:
            free = [process for process in self._processes if process not in self._busy]
            choices = [
                (weight, process, kind) for weight, role, kind in _CHOICES for process in free if process.role == role
            ]
            if choices:
                weights = [weight / sum(p.role == process.role for p in free) for weight, process, _ in choices]
                (chosen,) = self._chance.choices(choices, weights)
                return chosen[1], chosen[2]
            await asyncio.sleep(_LOOK_S)

    async def _strike(self, process: Process, kind: Kind, measure: float) -> None:
        """`measure` (0 to 1) says how long it stays away."""
        process.look()
        pid = process.pid
        at = await _do(process, kind, measure)
        blow = Blow(kind=kind, role=process.role, target=process.name, pid=pid, at=at, until=time.time())
        self.struck.append(blow)
        self._busy.discard(process)


async def _do(process: Process, kind: Kind, measure: float) -> float:
    """When it happened; returns when it is over."""
    at = time.time()
    match kind:
        case "kill":
            await process.kill()
            at = time.time()  # until now it may have written
            await asyncio.sleep(measure * _LONGEST_ABSENCE_S)
            await process.start()
        case "pause":
            process.pause()
            await asyncio.sleep(measure * _LONGEST_PAUSE_S)
            process.resume()
        case "leave":
            await process.leave()
            await process.start()
        case "reload":
            process.reload()
    return at


def waits(chance: random.Random, mean: float) -> Iterator[float]:
    """Seconds from one blow to the next, for ever. Half of them are short, so that blows fall into recoveries; the
    other half leaves time to see how long a recovery takes by itself."""
    while True:
        yield chance.uniform(0.0, mean * 0.5) if chance.random() < 0.5 else chance.uniform(mean, mean * 2.5)
