"""The judge of the chaos harness: every fault that it counts is fabricated here, and one sound run beside them."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from chaos.evidence import Followed, RunEvidence
from chaos.plan import RunPlan, plan_run
from chaos.system import Final, Seen
from chaos.verdict import count, judge_run, said

PLAN = plan_run(7, "c0-0")


def records_of(plan: RunPlan, *, first_turn: int = 1) -> list[Seen]:
    """A run as a system that does everything right would record it."""
    records = [Seen(seq=1, kind="run.started", at=1.0)]
    for number, turn in enumerate(plan.turns, first_turn):
        records.append(Seen(seq=len(records) + 1, kind="turn.started", at=1.0, turn=number))
        for piece in turn.pieces:
            records.append(Seen(seq=len(records) + 1, kind="text.delta", at=1.0, text=piece, data=piece.encode()))
    return [*records, Seen(seq=len(records) + 1, kind="run.finished", at=1.0, terminal=True)]


RECORDS = records_of(PLAN)


def evidence(seen: Sequence[Seen], *, final: Final | None = None, error: str | None = None) -> RunEvidence:
    followed = [Followed(client="plain", seen=seen, error=error)]
    return RunEvidence(run_id="r1", plan=PLAN, followed=followed, final=final or sound())


def sound() -> Final:
    return Final(
        status="completed", text=PLAN.text, output=PLAN.turns[-1].text, terminals=1, records=RECORDS, settled={}
    )


def faults(run: RunEvidence) -> dict[str, int]:
    return dict(count(judge_run(run)))


def test_a_sound_run_has_no_finding() -> None:
    assert faults(evidence(RECORDS)) == {}


def test_deltas_merged_for_a_slow_reader_are_the_same_records() -> None:
    first, second = RECORDS[2:4]
    merged = Seen(seq=second.seq, first=first.seq, kind="text.delta", at=1.0, text=first.text + second.text)
    assert faults(evidence([*RECORDS[:2], merged, *RECORDS[4:]])) == {}


def test_a_merged_delta_that_leaves_out_a_word_is_altered_and_tells_another_text() -> None:
    first, second = RECORDS[2:4]
    merged = Seen(seq=second.seq, first=first.seq, kind="text.delta", at=1.0, text=second.text)
    assert faults(evidence([*RECORDS[:2], merged, *RECORDS[4:]])) == {"altered": 1, "text_differs": 1}


FAULTY: dict[str, tuple[Callable[[list[Seen]], list[Seen]], dict[str, int]]] = {
    "one never came": (lambda seen: seen[:5] + seen[6:], {"lost": 1, "text_differs": 1}),
    "three never came": (lambda seen: seen[:5] + seen[8:], {"lost": 3, "text_differs": 1}),
    "the end never came": (lambda seen: seen[:-1], {"lost": 1}),
    "one came twice": (lambda seen: seen[:6] + seen[5:], {"duplicated": 1, "text_differs": 1}),
    "two changed places": (
        lambda seen: [*seen[:5], seen[6], seen[5], *seen[7:]],
        {"reordered": 1, "text_differs": 1},
    ),
    "one has other bytes": (lambda seen: [*seen[:5], replace(seen[5], data=b"?"), *seen[6:]], {"altered": 1}),
    "one is of another kind": (lambda seen: [*seen[:-1], replace(seen[-1], kind="run.error")], {"altered": 1}),
    "the log has lost one": (
        lambda seen: [*seen, Seen(seq=seen[-1].seq + 1, kind="tool.progress", at=1.0)],
        {"lost": 1},
    ),
    "a second end": (
        lambda seen: [*seen, Seen(seq=seen[-1].seq + 1, kind="run.finished", at=1.0, terminal=True)],
        {"double_terminals": 1, "lost": 1},
    ),
}


@pytest.mark.parametrize("fault", FAULTY)
def test_each_fault_of_what_a_client_saw_is_counted(fault: str) -> None:
    spoil, expected = FAULTY[fault]
    assert faults(evidence(spoil(RECORDS))) == expected


FINALS: dict[str, tuple[Final, dict[str, int]]] = {
    "no end": (replace(sound(), status=""), {"zombies": 1}),
    "it failed": (replace(sound(), status="failed"), {"failed": 1}),
    "two ends": (replace(sound(), terminals=2), {"double_terminals": 1}),
    "another text": (replace(sound(), text="hello"), {"text_differs": 1}),
    "another output": (replace(sound(), output="hello"), {"text_differs": 1}),
    "the log has a hole": (replace(sound(), records=RECORDS[:4] + RECORDS[5:]), {"lost": 2}),
    "the log repeats itself": (replace(sound(), records=RECORDS[:5] + RECORDS[4:]), {"duplicated": 1}),
    "the log is gone": (replace(sound(), records=()), {"lost": len(RECORDS)}),
    "the log cannot be read again": (replace(sound(), records=None), {}),
}


@pytest.mark.parametrize("case", FINALS)
def test_each_fault_of_what_the_system_reports_is_counted(case: str) -> None:
    final, expected = FINALS[case]
    assert faults(evidence(RECORDS, final=final)) == expected


def test_a_run_that_nobody_can_read_is_a_zombie() -> None:
    run = RunEvidence(run_id="r1", plan=PLAN, followed=[Followed(client="sse", seen=RECORDS)], final=None)
    assert faults(run) == {"zombies": 1}


def test_a_client_that_gave_up_is_counted_and_its_missing_records_are_not() -> None:
    assert faults(evidence(RECORDS[:4], error="ServerUnreachable()")) == {"client_errors": 1}


def test_holes_are_seen_without_a_log_to_compare_with() -> None:
    run = evidence(RECORDS[:5] + RECORDS[6:], final=replace(sound(), records=None))
    assert faults(run) == {"lost": 1, "text_differs": 1}


def test_text_that_was_retracted_and_said_again_is_the_same_text() -> None:
    started, first, second = RECORDS[1:4]
    seen = [started, first, Seen(seq=9, kind="text.retracted", at=1.0, turn=1), first, second]
    assert said(seen) == first.text + second.text


def test_text_that_is_said_again_without_being_retracted_is_not() -> None:
    started, first, second = RECORDS[1:4]
    assert said([started, first, first, second]) == first.text * 2 + second.text
