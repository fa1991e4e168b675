"""How much of what: the size of a campaign."""

from dataclasses import dataclass

_SECONDS_PER_KILL = 3.0
_CUTS_PER_SECOND = 7.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """`kills` processes are killed or frozen and `cuts` connections cut within about `seconds`; it goes on until both
    numbers are reached. Every run is judged `settle_s` seconds after its end, so that what comes too late is seen.
    Runs that have no end `patience_s` seconds after the last blow are zombies. A second reader of a run comes up to
    `late_s` seconds after the first one."""

    seed: int
    instances: int
    clients: int
    seconds: float
    kills: int
    cuts: int
    settle_s: float = 10.0
    patience_s: float = 90.0
    late_s: float = 3.0


def orders(
    *, seed: int, instances: int, clients: int, seconds: float | None, kills: int | None, cuts: int | None
) -> Orders:
    """What was not asked for follows from the rest; a minute when nothing was."""
    if seconds is None:
        seconds = max((kills or 0) * _SECONDS_PER_KILL, (cuts or 0) / _CUTS_PER_SECOND) or 60.0
    return Orders(
        seed=seed,
        instances=instances,
        clients=clients,
        seconds=seconds,
        kills=round(seconds / _SECONDS_PER_KILL) if kills is None else kills,
        cuts=round(seconds * _CUTS_PER_SECOND) if cuts is None else cuts,
    )
