"""Recovery and gaps, from fabricated records and deaths."""

import pytest

from chaos.evidence import Blow, Kind
from chaos.process import Role
from chaos.system import Seen
from chaos.timing import gaps, percentile, recoveries


def record(at: float, *, worker: int = 0, seq: int = 1) -> Seen:
    return Seen(seq=seq, kind="text.delta", at=at, worker=worker)


def blow(at: float, until: float, *, pid: int, kind: Kind = "kill", role: Role = "instance") -> Blow:
    return Blow(kind=kind, role=role, target="x", pid=pid, at=at, until=until)


RECORDS = [record(1.0), record(1.1, worker=7), record(2.0), record(5.5, worker=8), record(6.0)]


def test_a_recovery_is_from_the_owners_death_to_the_next_record() -> None:
    (found,) = recoveries(RECORDS, [blow(2.5, 3.5, pid=7)])
    assert found.seconds == pytest.approx(3.0)
    assert found.clean


def test_somebody_elses_death_is_no_recovery() -> None:
    assert recoveries(RECORDS, [blow(2.5, 3.5, pid=8)]) == []
    assert recoveries(RECORDS, [blow(5.8, 6.5, pid=7)]) == []


def test_a_death_after_the_last_record_is_no_recovery() -> None:
    assert recoveries(RECORDS, [blow(6.5, 7.5, pid=8)]) == []


def test_only_a_kill_of_an_instance_is_a_death() -> None:
    assert recoveries(RECORDS, [blow(2.5, 3.5, pid=7, kind="pause")]) == []
    assert recoveries(RECORDS, [blow(2.5, 3.5, pid=7, role="store")]) == []


def test_a_recovery_during_which_something_else_broke_is_told_apart() -> None:
    death = blow(2.5, 3.5, pid=7)
    for other in (blow(4.0, 4.5, pid=9), blow(1.0, 2.6, pid=9, role="store"), blow(1.0, 9.0, pid=9, kind="pause")):
        assert [found.clean for found in recoveries(RECORDS, [death, other])] == [False]
    assert [found.clean for found in recoveries(RECORDS, [death, blow(6.0, 7.0, pid=9)])] == [True]


def test_gaps_are_what_a_client_waited_between_records() -> None:
    assert [gap.seconds for gap in gaps(RECORDS)] == pytest.approx([0.1, 0.9, 3.5, 0.5])
    assert gaps(RECORDS[:1]) == []


def test_a_gap_tells_how_long_the_run_itself_took() -> None:
    (gap,) = gaps([record(1.0), record(9.0, seq=2)], [record(0.9), record(1.1, seq=2)])
    assert (gap.seconds, round(gap.made_s, 3)) == (8.0, 0.2)


def test_percentiles_are_real_values() -> None:
    assert percentile(range(1, 101), 0.99) == 100
    assert percentile(range(1, 1001), 0.99) == 991
    assert percentile([], 0.99) == 0
