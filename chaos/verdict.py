"""Judges what was collected: pure functions, each of which names what it found.

The log (the run as the system gives it afterwards) and every client must hold the same records, and both must hold the
text that the plan says. Nothing here knows Headrace: rivals are judged by the same lines.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from chaos.evidence import Followed, RunEvidence
from chaos.plan import RunPlan
from chaos.system import Final, Seen

Fault = Literal[
    "lost",
    "duplicated",
    "reordered",
    "altered",
    "text_differs",
    "extra_tool_runs",
    "missed_tool_runs",
    "double_terminals",
    "zombies",
    "failed",
    "client_errors",
    "falls",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that should not be. `count` is how many records, runs or executions it concerns."""

    fault: Fault
    where: str
    what: str
    count: int = 1

    def __str__(self) -> str:
        return f"{self.fault}: {self.where}: {self.what}"


def judge_run(run: RunEvidence) -> list[Finding]:
    """Everything about one run but its tools."""
    where = f"run {run.run_id} ({run.plan.name})"
    final = run.final
    if final is None or not final.status:
        stuck = "cannot be read" if final is None else "has no end"
        return [Finding(fault="zombies", where=where, what=stuck), *_gave_up(run, where)]
    return [
        *_gave_up(run, where),
        *_ending(final, run.followed, where),
        *_log_itself(final, where),
        *(found for one in run.followed if not one.error for found in _compare(one, final.records, where)),
        *_texts(run.plan, final, run.followed, where),
    ]


def _gave_up(run: RunEvidence, where: str) -> Iterator[Finding]:
    for one in run.followed:
        if one.error:
            yield Finding(fault="client_errors", where=f"{where}, {one.client}", what=one.error)


def _ending(final: Final, followed: Sequence[Followed], where: str) -> Iterator[Finding]:
    if final.status != "completed":
        yield Finding(fault="failed", where=where, what=f"it ended {final.status} {final.reason}")
    shown = [len({seen.seq for seen in one.seen if seen.terminal}) for one in followed]
    ends = max([final.terminals, *shown])
    if ends > 1:
        yield Finding(fault="double_terminals", where=where, what=f"{ends} ends", count=ends - 1)


def _log_itself(final: Final, where: str) -> Iterator[Finding]:
    """The log's own numbers go up, by one if they are dense."""
    for before, after in pairwise(final.records or ()):
        step = after.seq - before.seq
        if step > 1 and final.dense:
            yield Finding(fault="lost", where=f"{where}, log", what=f"nothing after {before.seq}", count=step - 1)
        elif step == 0:
            yield Finding(fault="duplicated", where=f"{where}, log", what=f"{after.seq} twice")
        elif step < 0:
            yield Finding(fault="reordered", where=f"{where}, log", what=f"{after.seq} after {before.seq}")


def _compare(one: Followed, records: Sequence[Seen] | None, where: str) -> Iterator[Finding]:
    """A client's records against the log's."""
    where = f"{where}, {one.client}"
    got: set[int] = set()
    highest = None
    for seen in one.seen:
        covered = range(seen.first or seen.seq, seen.seq + 1)
        again = sum(seq in got for seq in covered)
        if again:
            yield Finding(fault="duplicated", where=where, what=f"{seen.seq} ({seen.kind}) again", count=again)
        elif highest is not None and seen.seq < highest:
            yield Finding(fault="reordered", where=where, what=f"{seen.seq} after {highest}")
        highest = seen.seq if highest is None else max(highest, seen.seq)
        got.update(covered)
    if records is None:
        yield from _holes(got, where)
        return
    log = {record.seq: record for record in records}
    yield from _missing(log.keys() - got, "the client was never shown", where)
    yield from _missing(got - log.keys(), "shown to the client, and not in the log", where)
    for seen in one.seen:
        if not _same(seen, log):
            yield Finding(fault="altered", where=where, what=f"{seen.seq} ({seen.kind}) is not what the log holds")


def _holes(got: set[int], where: str) -> Iterator[Finding]:
    missing = set(range(min(got), max(got))) - got if got else set()
    yield from _missing(missing, "the client was never shown", where)


def _missing(seqs: Iterable[int], what: str, where: str) -> Iterator[Finding]:
    missing = sorted(seqs)
    if missing:
        shown = ", ".join(map(str, missing[:8])) + (" …" if len(missing) > 8 else "")
        yield Finding(fault="lost", where=where, what=f"{what}: {shown}", count=len(missing))


def _same(seen: Seen, log: Mapping[int, Seen]) -> bool:
    """Whether a record, or what was merged from several, is the log's. One that the log lacks is not judged here."""
    covered = [log[seq] for seq in range(seen.first or seen.seq, seen.seq + 1) if seq in log]
    if len(covered) > 1:
        return seen.text == "".join(record.text for record in covered)
    return not covered or (seen.kind, seen.data) == (covered[0].kind, covered[0].data)


def _texts(plan: RunPlan, final: Final, followed: Sequence[Followed], where: str) -> Iterator[Finding]:
    """One finding per run, however many of its readers were told something else."""
    wanted = plan.text if final.status == "completed" else final.text
    readers = {"the system": final.text, **{one.client: said(one.seen) for one in followed if not one.error}}
    wrong = [reader for reader, text in readers.items() if text != wanted]
    if final.status == "completed" and final.output is not None and final.output != plan.turns[-1].text:
        wrong.append("the final output")
    if wrong:
        text = readers.get(wrong[0], final.output or "")
        yield Finding(fault="text_differs", where=f"{where}, {', '.join(wrong)}", what=difference(text, wanted))


def said(seen: Iterable[Seen]) -> str:
    """What a client that follows the protocol has on its screen in the end."""
    turns: dict[int, list[str]] = {}
    turn = 0
    for record in seen:
        if record.kind == "turn.started":
            turn = record.turn
        elif record.kind == "text.delta":
            turns.setdefault(turn, []).append(record.text)
        elif record.kind == "text.retracted":
            turns.pop(record.turn, None)
        elif record.kind == "text.replaced":
            turns = {turn: [record.text]}
    return "".join(piece for pieces in turns.values() for piece in pieces)


def difference(text: str, wanted: str) -> str:
    """Where two texts part, for a person."""
    at = next((at for at, pair in enumerate(zip(text, wanted, strict=False)) if pair[0] != pair[1]), None)
    at = min(len(text), len(wanted)) if at is None else at
    return f"at {at} of {len(wanted)}: {text[at : at + 24]!r} instead of {wanted[at : at + 24]!r}"


def count(findings: Iterable[Finding]) -> Counter[str]:
    total: Counter[str] = Counter()
    for finding in findings:
        total[finding.fault] += finding.count
    return total
