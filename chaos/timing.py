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


def recoveries(records: Sequence[Seen], blows: Sequence[Blow], *, under_way_s: float = 0.0) -> list[Recovery]:
    """Of one run, for each of its owners that was killed. Records that tell no worker are the last known one's. What a
    reader got within `under_way_s` of the death had been sent before it."""
    found = []
    for death in blows:
        if death.kind != "kill" or death.role != "instance":
            continue
        before = [record for record in records if record.at <= death.at]
        after = next((record for record in records if record.at > death.at + under_way_s), None)
        owner = next((record.worker for record in reversed(before) if record.worker), 0)
        if after is not None and owner == death.pid:
            meanwhile = (blow for blow in blows if blow is not death)
            clean = not any(blow.at <= after.at and death.at <= blow.until for blow in meanwhile)
            found.append(Recovery(seconds=after.at - death.at, clean=clean))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """`seconds` that a client waited for the record after `seq`, and where; the run itself took `made_s` for it."""

    seconds: float
    made_s: float
    where: str
    seq: int
    at: float

    def __str__(self) -> str:
        made = f"the run took {self.made_s:.2f} s"
        return f"{self.seconds:.2f} s ({made}) from {self.at:.2f} on, {self.where}, after record {self.seq}"


def gaps(seen: Sequence[Seen], log: Sequence[Seen] = (), where: str = "") -> list[Gap]:
    """Between one record and the next, as a client received them. `log` holds the times when they were made."""
    made = {record.seq: record.at for record in log}
    return [
        Gap(
            seconds=after.at - at.at,
            made_s=made.get(after.seq, 0.0) - made.get(at.seq, 0.0),
            where=where,
            seq=at.seq,
            at=at.at,
        )
        for at, after in pairwise(seen)
    ]


def percentile(values: Iterable[float], part: float) -> float:
    """The nearest rank; 0 for no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else 0.0
