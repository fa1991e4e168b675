"""The life of a replica as its circuit sees it; time is a number."""

from typing import get_args

import pytest

from headrace.engine.pool.circuit import TRANSITIONS, Circuit, Happening, Patience, State

PATIENCE = Patience(failures=3, cool_first=1.0, cool_longest=4.0, slow_start=10.0)


def circuit(limit: int = 10) -> Circuit:
    return Circuit(limit, PATIENCE)


def opened(at: float = 0.0) -> Circuit:
    broken = circuit()
    for _ in range(PATIENCE.failures):
        broken.failed(at)
    return broken


def test_the_table_has_every_state_and_leads_out_of_each() -> None:
    assert set(TRANSITIONS) == set(get_args(State))
    for ways in TRANSITIONS.values():
        assert set(ways) <= set(get_args(Happening))
        assert set(ways.values()) <= set(get_args(State))
        assert ways


def test_failures_in_a_row_open_it_and_an_answer_between_them_does_not_let_them() -> None:
    replica = circuit()
    for _ in range(5):
        replica.failed(0.0)
        replica.failed(0.0)
        replica.answered()
    assert (replica.state, replica.room(4, 0.0)) == ("closed", 6)
    assert (opened().state, opened().room(0, 0.5)) == ("open", 0)


def test_after_a_while_one_request_tries_it_and_no_other_meanwhile() -> None:
    replica = opened()
    assert replica.changes_at(0.0) == 1.0
    assert replica.room(7, 1.0) == 1  # whatever it still answers
    replica.asked(1.0)
    assert (replica.state, replica.room(0, 100.0), replica.changes_at(1.0)) == ("half_open", 0, None)


def test_a_trial_that_fails_makes_the_next_one_wait_twice_as_long_up_to_a_bound() -> None:
    replica, at, waits = opened(), 0.0, []
    for _ in range(5):
        due = replica.changes_at(at)
        assert due is not None
        waits.append(due - at)
        at = due
        replica.asked(at)
        replica.failed(at)
    assert waits == [1.0, 2.0, 4.0, 4.0, 4.0]


def test_a_trial_that_is_taken_back_says_nothing_and_another_one_may_try() -> None:
    replica = opened()
    replica.asked(1.0)
    replica.left(1.5)
    assert (replica.state, replica.room(0, 1.5)) == ("open", 1)


def test_the_first_word_of_a_trial_brings_it_back_slowly() -> None:
    replica = opened()
    replica.asked(1.0)
    replica.spoke(2.0)
    assert (replica.state, replica.in_service(2.0)) == ("warming", True)
    assert [replica.size(2.0 + t) for t in (0, 0.9, 1.0, 5.0, 9.0, 99.0)] == [1, 1, 2, 6, 10, 10]
    assert replica.changes_at(2.0) == 3.0
    assert replica.changes_at(99.0) is None


def test_it_is_closed_again_once_it_has_all_its_places_and_then_bears_single_failures() -> None:
    replica = opened()
    replica.asked(1.0)
    replica.spoke(2.0)
    states = []
    for happens, at in ((replica.asked, 11.9), (replica.asked, 12.0), (replica.failed, 12.0)):
        happens(at)
        states.append(replica.state)
    assert states == ["warming", "closed", "closed"]
    replica.failed(20.0)
    replica.failed(20.0)
    assert replica.changes_at(20.0) == 21.0  # what it had to wait for earlier is forgotten


def test_a_failure_while_it_comes_back_opens_it_at_once() -> None:
    replica = opened()
    replica.asked(1.0)
    replica.spoke(2.0)
    replica.failed(3.0)
    assert (replica.state, replica.changes_at(3.0)) == ("open", 5.0)


def test_one_that_is_overloaded_is_left_alone_for_as_long_as_it_asks_and_is_not_held_to_have_failed() -> None:
    replica = circuit()
    replica.overloaded(0.0, 7.0)
    replica.overloaded(0.0, None)
    assert (replica.state, replica.room(0, 6.9), replica.in_service(6.9), replica.changes_at(0.0)) == (
        "closed",
        0,
        False,
        7.0,
    )
    assert (replica.room(0, 7.0), replica.in_service(7.0)) == (10, True)


def test_one_that_is_shut_is_tried_by_nobody_until_it_speaks() -> None:
    replica = circuit()
    replica.shut()
    assert (replica.room(0, 1e9), replica.changes_at(0.0), replica.in_service(1e9)) == (0, None, False)
    replica.spoke(5.0)
    assert replica.state == "warming"


@pytest.mark.parametrize("limit", [1, 3, 64])
def test_the_clock_is_never_set_for_a_time_at_which_nothing_changes(limit: int) -> None:
    replica = Circuit(limit, PATIENCE)
    replica.shut()
    replica.spoke(0.1)
    at, sizes = 0.1, [replica.size(0.1)]
    while (due := replica.changes_at(at)) is not None:
        assert due > at
        at = due
        sizes.append(replica.size(at))
    assert sizes[-1] == limit
    assert len(sizes) <= 2 * limit
