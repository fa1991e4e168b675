"""How long runs and clients had to wait: pure functions over what was collected."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from chaos.evidence import Blow
from chaos.system import Seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """`seconds` from a worker's death to the next record of a run it owned; `clean` if nothing else broke meanwhile."""

    seconds: float
    clean: bool


def recoveries(records: Sequence[Seen], blows: Sequence[Blow]) -> list[Recovery]:
    """Of one run, for each of its owners that was killed. Records that tell no worker are the last known one's."""
    found = []
    for death in blows:
        if death.kind != "kill" or death.role != "instance":
            continue
        before = [record for record in records if record.at <= death.at]
        after = next((record for record in records if record.at > death.at), None)
        owner = next((record.worker for record in reversed(before) if record.worker), 0)
        if after is not None and owner == death.pid:
            meanwhile = (blow for blow in blows if blow is not death)
            clean = not any(blow.at <= after.at and death.at <= blow.until for blow in meanwhile)
            found.append(Recovery(seconds=after.at - death.at, clean=clean))
    return found


def gaps(seen: Sequence[Seen]) -> list[float]:
    """Seconds between one record and the next, as a client had to wait for them."""
    return [after.at - before.at for before, after in pairwise(seen)]


def percentile(values: Iterable[float], part: float) -> float:
    """The nearest rank; 0 for no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else 0.0
