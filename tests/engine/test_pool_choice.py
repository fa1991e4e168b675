"""Which replica a request goes to, without any engine."""

import math
from itertools import product

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.pool.choice import SPILL, Load, choose, prefix_of
from headrace.engine.port import ModelRequest
from headrace.messages import Message, ToolSpec

NAMES = ("a", "b", "c", "d")


def load(name: str, active: int = 0, size: int = 8, room: int | None = None) -> Load:
    return Load(name=name, active=active, size=size, room=size - active if room is None else room)


def idle(*names: str) -> list[Load]:
    return [load(name) for name in names]


def test_the_same_prefix_goes_to_the_same_replica_in_whatever_order_they_are_given() -> None:
    for number in range(50):
        home = choose(idle(*NAMES), f"thread {number}")
        assert home == choose(idle(*reversed(NAMES)), f"thread {number}")


def test_prefixes_are_spread_evenly() -> None:
    homes = [choose(idle(*NAMES), f"thread {number}") for number in range(4000)]
    assert all(800 < homes.count(name) < 1200 for name in NAMES)


def test_a_replica_that_leaves_takes_only_its_own_prefixes_with_it() -> None:
    for number in range(200):
        before, after = choose(idle(*NAMES), f"t{number}"), choose(idle("a", "b", "c"), f"t{number}")
        assert before in ("d", after)


def test_a_home_that_is_busier_than_its_share_gives_a_request_to_the_next_in_its_own_order() -> None:
    prefix = next(f"t{n}" for n in range(100) if choose(idle(*NAMES), f"t{n}") == "a")
    second = choose(idle("b", "c", "d"), prefix)
    busy = [load("a", active=3), *idle("b", "c", "d")]
    assert choose(busy, prefix) == second


def test_a_replica_that_answered_the_prefix_last_comes_before_its_home_within_the_same_bound() -> None:
    prefix = next(f"t{n}" for n in range(100) if choose(idle(*NAMES), f"t{n}") == "a")
    guest, earlier = (msgspec.structs.replace(load(name), last=at) for name, at in (("b", 2.0), ("c", 1.0)))
    assert choose([load("a"), guest, earlier, load("d")], prefix) == "b"
    busy = msgspec.structs.replace(guest, active=3, room=5)
    assert choose([load("a"), busy, earlier, load("d")], prefix) == "c"
    full = msgspec.structs.replace(guest, room=0)
    assert choose([load("a"), full, load("c"), load("d")], prefix) == "a"


def test_a_replica_without_room_is_never_chosen_and_when_nobody_has_any_none_is() -> None:
    full = [load("a", active=8), load("b", active=8)]
    assert choose(full, "t") is None
    assert choose([], "t") is None
    assert choose([*full, load("c")], "t") == "c"


def test_a_larger_replica_has_a_larger_share() -> None:
    loads = [load("small", active=2, size=4), load("large", active=2, size=40)]
    assert {choose(loads, f"t{number}") for number in range(50)} == {"large"}


def test_when_all_that_have_room_are_over_their_share_the_least_busy_is_chosen() -> None:
    loads = [load("full", active=0, size=100, room=0), load("b", active=9, size=10), load("c", active=5, size=10)]
    assert {choose(loads, f"t{number}") for number in range(20)} == {"c"}


def test_every_small_situation_is_decided_within_the_bound_or_to_the_least_busy() -> None:
    for actives in product(range(4), repeat=3):
        for rooms in product((0, 1), repeat=3):
            loads = [load(n, active=a, size=4, room=r) for n, a, r in zip("abc", actives, rooms, strict=True)]
            assert_decided_well(loads, f"t{actives}")


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40), st.integers(0, 3)), min_size=1, max_size=6),
    st.text(max_size=10),
)
def test_any_situation_is_decided_within_the_bound_or_to_the_least_busy(
    states: list[tuple[int, int, int]], prefix: str
) -> None:
    assert_decided_well([load(f"r{i}", active=a, size=s, room=r) for i, (a, s, r) in enumerate(states)], prefix)


def assert_decided_well(loads: list[Load], prefix: str) -> None:
    roomy = [one for one in loads if one.room]
    name = choose(loads, prefix)
    assert (name is None) == (not roomy)
    if name is None:
        return
    chosen = next(one for one in loads if one.name == name)
    assert chosen.room > 0
    fair = (1 + sum(one.active for one in loads)) / sum(one.size for one in loads)
    within = [one for one in roomy if one.active < math.ceil(SPILL * fair * one.size)]
    if within:
        assert chosen in within
    else:
        assert chosen.active / chosen.size == min(one.active / one.size for one in roomy)


def test_a_thread_has_its_prefix_whatever_is_said_in_it() -> None:
    said = [ModelRequest(messages=(Message(role="user", content=text),), session="s") for text in ("one", "two")]
    assert prefix_of(said[0]) == prefix_of(said[1])
    assert prefix_of(said[0]) != prefix_of(ModelRequest(messages=said[0].messages, session="other"))


def test_without_a_thread_the_beginning_of_the_prompt_is_the_prefix() -> None:
    system = Message(role="system", content="Be brief. " * 200)
    asked = [ModelRequest(messages=(system, Message(role="user", content=text))) for text in ("one", "two")]
    assert prefix_of(asked[0]) == prefix_of(asked[1])
    assert prefix_of(asked[0]) != prefix_of(ModelRequest(messages=asked[0].messages, tools=(ToolSpec(name="clock"),)))
    raw = [ModelRequest(prompt="Once upon a time " * 100 + end) for end in ("a", "b")]
    assert prefix_of(raw[0]) == prefix_of(raw[1]) != prefix_of(ModelRequest(prompt="Twice"))
    assert prefix_of(asked[0]) != prefix_of(ModelRequest(messages=(Message(role="user", content="one"),)))
