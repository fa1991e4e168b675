"""Who goes next."""

from headrace.engine.line.line import PATIENT_EVERY, Line, Waiter


def waiter(session: str | None = None, *, priority: int = 0) -> Waiter:
    return Waiter(priority=priority, session=session, prefix="")


def went(line: Line[Waiter], count: int) -> list[Waiter]:
    """The next ones, in order."""
    gone = []
    for _ in range(count):
        first = next(line.order())
        line.went(first)
        gone.append(first)
    return gone


def joined(line: Line[Waiter], *waiters: Waiter) -> list[Waiter]:
    for one in waiters:
        line.join(one)
    return list(waiters)


def test_who_came_first_goes_first() -> None:
    line: Line[Waiter] = Line()
    waiting = joined(line, *(waiter(f"s{number}") for number in range(5)), waiter())
    assert went(line, 6) == waiting


def test_a_session_with_many_requests_takes_its_turn_with_the_others() -> None:
    line: Line[Waiter] = Line()
    greedy = joined(line, *(waiter("greedy") for _ in range(4)))
    others = joined(line, waiter("a"), waiter("b"))
    assert went(line, 6) == [greedy[0], *others, *greedy[1:]]


def test_who_joins_later_does_not_overtake_a_session_s_second_request_for_ever() -> None:
    line: Line[Waiter] = Line()
    greedy = joined(line, waiter("greedy"), waiter("greedy"))
    gone = went(line, 1)
    for number in range(3):
        joined(line, waiter(f"new{number}"))
        gone += went(line, 1)
    assert greedy[1] in gone[:3]


def test_whoever_has_a_person_waiting_goes_before_those_who_may_wait() -> None:
    line: Line[Waiter] = Line()
    (patient,) = joined(line, waiter(priority=1))
    (urgent,) = joined(line, waiter())
    assert went(line, 2) == [urgent, patient]


def test_larger_priorities_wait_longer() -> None:
    line: Line[Waiter] = Line()
    joined(line, last := waiter(priority=9), middle := waiter(priority=1), first := waiter(priority=-1))
    assert went(line, 3) == [first, middle, last]


def test_those_who_may_wait_are_never_starved() -> None:
    line: Line[Waiter] = Line()
    (patient,) = joined(line, waiter(priority=5))
    gone: list[Waiter] = []
    for _ in range(2 * PATIENT_EVERY):
        joined(line, waiter())
        gone += went(line, 1)
    assert gone.index(patient) == PATIENT_EVERY


def test_who_leaves_the_line_is_not_waited_for_and_its_session_loses_nothing() -> None:
    line: Line[Waiter] = Line()
    joined(line, gone := waiter("s"), other := waiter("t"))
    line.leave(gone)
    (again,) = joined(line, waiter("s"))
    assert went(line, 2) == [other, again]
    assert len(line) == 0


def test_a_line_remembers_nothing_of_those_who_have_gone() -> None:
    line: Line[Waiter] = Line()
    for number in range(100):
        joined(line, waiter(f"s{number}"), waiter(f"s{number}"))
        went(line, 1)
    went(line, 100)
    assert (line._tags, line._clocks) == ({}, {})
