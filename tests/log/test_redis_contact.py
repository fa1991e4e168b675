"""What a worker may believe of leases. A lease is 3 s here, a renewal due every second."""

from collections.abc import Sequence

import pytest

from headrace.log.redis.contact import Contact
from headrace.log.redis.keys import Keys
from headrace.log.redis.renewal import Renewal

FIRST = Contact.first(3.0, asked=100.0, server_ms=5_000)


def test_a_new_worker_takes_over_from_the_dead_at_once() -> None:
    assert FIRST.knows_the_dead(100.0)


def test_a_worker_that_renews_in_time_knows_the_dead() -> None:
    assert FIRST.renewed(101.0, 6_000).renewed(102.5, 7_500).knows_the_dead(103.0)


def test_after_a_missed_renewal_the_others_have_a_lease_to_come_back() -> None:
    back = FIRST.renewed(112.0, 17_000)
    assert not back.knows_the_dead(112.0)
    later = back.renewed(113.0, 18_000).renewed(114.0, 19_000)
    assert not later.knows_the_dead(114.9)
    assert later.knows_the_dead(115.0)


def test_a_worker_whose_renewal_is_late_does_not_know_the_dead_before_it_is_answered() -> None:
    assert FIRST.knows_the_dead(101.4)
    assert not FIRST.knows_the_dead(101.6)  # the server may have been away, and be back before we have asked again
    assert not FIRST.renewed(101.6, 6_600).knows_the_dead(101.7)


def test_its_own_leases_are_sure_for_one_lease_from_when_it_asked() -> None:
    assert FIRST.is_fresh(102.9)
    assert not FIRST.is_fresh(103.0)
    assert not FIRST.knows_the_dead(103.0)


@pytest.mark.parametrize(("now", "until_ms"), [(100.0, 6_000), (100.5, 6_500)])
def test_a_command_is_obeyed_for_a_third_of_a_lease_after_it_was_sent(now: float, until_ms: int) -> None:
    assert FIRST.obey_until_ms(now) == until_ms


def test_what_was_lost_is_known_before_the_rest_is_relied_on_again() -> None:
    """Else a process that stood still would, for a moment, answer from runs that others have gone on with."""
    fresh_when_told: list[bool] = []

    def lost(runs: Sequence[str]) -> None:
        fresh_when_told.append(renewal.contact.is_fresh(112.0))

    renewal = Renewal("redis://unused", Keys("p"), worker="w", lease_s=3.0, held={"r"}, lost=lost)
    renewal._tell(FIRST, [])
    renewal._tell(FIRST.renewed(112.0, 17_000), ["r"])
    assert fresh_when_told == [False]
    assert renewal.contact.is_fresh(112.0)
