"""Judges how often tools ran: what the ledger says against what each tool's effect permits."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from chaos.evidence import Blow
from chaos.ledger import Execution
from chaos.plan import EFFECTS, RunPlan
from chaos.verdict import Finding

_STAMP_S = 0.001
"""Stamps of records are cut to the millisecond."""


def judge_tools(
    plans: Iterable[RunPlan], executions: Iterable[Execution], settled: Mapping[str, float], blows: Sequence[Blow]
) -> list[Finding]:
    """`plans` are those of completed runs and of all others that began; `settled` as in Final, of all runs.

    A `once` tool may run once. Another may run again where something happened to a process since it last ran, but not
    when its result was already there (unless it then ran in a process that had been frozen before it could begin).
    """
    ran: dict[str, list[Execution]] = {}
    for execution in executions:
        ran.setdefault(execution.label, []).append(execution)
    findings = []
    for plan in plans:
        for call in plan.calls:
            extra = _extra(ran.get(call.label, []), settled, blows)
            if extra:
                what = f"{call.tool} ran {len(ran[call.label])} times"
                findings.append(Finding(fault="extra_tool_runs", where=call.label, what=what, count=extra))
    return findings


def missed_tools(completed: Iterable[RunPlan], executions: Iterable[Execution]) -> list[Finding]:
    """Calls of completed runs that never ran. Of a `once` tool it may stay unknown whether it ran."""
    ran = {execution.label for execution in executions}
    return [
        Finding(fault="missed_tool_runs", where=call.label, what=f"{call.tool} never ran")
        for plan in completed
        for call in plan.calls
        if call.label not in ran and EFFECTS[call.tool] != "once"
    ]


def _extra(ran: Sequence[Execution], settled: Mapping[str, float], blows: Sequence[Blow]) -> int:
    extra = 0
    for before, again in pairwise(ran):
        if EFFECTS[again.tool] == "once":
            extra += 1
            continue
        broken = any(before.at <= blow.until and blow.at <= again.at for blow in blows)
        late = again.at > settled.get(again.call_id, again.at) + _STAMP_S
        frozen = any(blow.kind == "pause" and blow.pid == again.pid and blow.at <= again.at for blow in blows)
        extra += not broken or (late and not frozen)
    return extra
