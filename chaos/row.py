"""One line of the table: what a campaign did to a system, and what came of it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, get_args

from chaos.evidence import Blow, RunEvidence
from chaos.plan import RunPlan
from chaos.timing import Gap, Recovery, gaps, percentile, recoveries
from chaos.verdict import Fault, Finding, count, judge_run

FAULTS: tuple[str, ...] = get_args(Fault)

_UNDER_WAY_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Every one of `faults` must be 0. Times are seconds: `recovery_s` is the slowest from a worker's death to the next
    record of a run it owned, of those during which nothing else broke (`recoveries` many); `silence_s` the slowest of
    all. The gaps are between two records of a run as a client received them; `gap_longest` says where that was."""

    system: str
    instances: int
    seconds: float
    runs: int
    records: int
    kills: int
    cuts: int
    faults: dict[str, int]
    recoveries: int
    recovery_s: float
    silence_s: float
    gap_p99_s: float
    gap_longest_s: float
    gap_longest: str

    @property
    def passed(self) -> bool:
        return self.runs > 0 and not any(self.faults.values())

    def cells(self) -> dict[str, Any]:
        """Column → value, as they are printed."""
        cells = asdict(self)
        faults = cells.pop("faults")
        rounded = {name: round(value, 2) if isinstance(value, float) else value for name, value in cells.items()}
        return {**rounded, **faults}


@dataclass(slots=True, kw_only=True)
class Tally:
    """Judges runs one by one and keeps only what the row and the tools' judge need, so that a campaign may be long."""

    runs: int = 0
    records: int = 0
    findings: list[Finding] = field(default_factory=list)
    begun: list[RunPlan] = field(default_factory=list)
    completed: list[RunPlan] = field(default_factory=list)
    settled: dict[str, float] = field(default_factory=dict)
    recovered: list[Recovery] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    longest: Gap | None = None

    def add(self, run: RunEvidence, blows: Sequence[Blow]) -> list[Finding]:
        """What was found in this run."""
        found = judge_run(run)
        self.findings += found
        self.runs += 1
        self.begun.append(run.plan)
        records = (run.final and run.final.records) or ()
        for one in run.followed:
            self._wait(gaps(one.seen, records, f"run {run.run_id} ({run.plan.name}), {one.client}"))
        if run.final is not None:
            self.records += len(records)
            self.settled |= run.final.settled
            self.recovered += _recoveries(run, blows)
            if run.final.status == "completed":
                self.completed.append(run.plan)
        return found

    def _wait(self, waited: Sequence[Gap]) -> None:
        self.waited += [gap.seconds for gap in waited]
        known = [self.longest] if self.longest else []
        self.longest = max((*known, *waited), key=lambda gap: gap.seconds, default=None)

    def row(self, system: str, *, instances: int, seconds: float, kills: int, cuts: int) -> Row:
        faults: Counter[str] = count(self.findings)
        clean = [one.seconds for one in self.recovered if one.clean]
        return Row(
            system=system,
            instances=instances,
            seconds=seconds,
            runs=self.runs,
            records=self.records,
            kills=kills,
            cuts=cuts,
            faults={name: faults[name] for name in FAULTS},
            recoveries=len(clean),
            recovery_s=max(clean, default=0.0),
            silence_s=max((one.seconds for one in self.recovered), default=0.0),
            gap_p99_s=percentile(self.waited, 0.99),
            gap_longest_s=self.longest.seconds if self.longest else 0.0,
            gap_longest=str(self.longest or ""),
        )


def _recoveries(run: RunEvidence, blows: Sequence[Blow]) -> list[Recovery]:
    """By the log's own times; where it keeps none, or forgets what a dead worker wrote, as the first reader saw it."""
    records = (run.final and run.final.records) or ()
    if any(record.at for record in records):
        return recoveries(records, blows)
    return recoveries(run.followed[0].seen, blows, under_way_s=_UNDER_WAY_S)


_COLUMNS = {
    "system": "system",
    "instances": "instances",
    "runs": "runs",
    "records": "records",
    "kills": "kills",
    "cuts": "cuts",
    "lost": "records lost",
    "duplicated": "duplicated",
    "reordered": "reordered",
    "altered": "altered",
    "text_differs": "text differs",
    "extra_tool_runs": "extra tool runs",
    "missed_tool_runs": "tools never run",
    "double_terminals": "double ends",
    "zombies": "zombies",
    "failed": "failed runs",
    "client_errors": "client errors",
    "falls": "servers fallen",
    "recovery_s": "slowest recovery s",
    "gap_p99_s": "p99 gap s",
    "gap_longest_s": "longest gap s",
}


def table(rows: Sequence[Row]) -> str:
    """Markdown."""
    lines = [_COLUMNS.values(), ["---"] * len(_COLUMNS)]
    for row in rows:
        cells = row.cells() | ({} if row.recoveries else {"recovery_s": "–"})
        lines.append([f"{cells[name]:,}" if isinstance(cells[name], int) else str(cells[name]) for name in _COLUMNS])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
