from itertools import count, pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.tools.assembly import Assembly, CallFragment, CallStarted, CallWhole, Step

CALLS = [
    ("c0", "search", '{"query":"a \\"quoted\\" {brace}","n":3}'),
    ("c1", "clock", "{}"),
    ("c2", "search", '{"query":"héllo 世界"}'),
]


def pieces(text: str, cuts: list[int]) -> list[str]:
    at = sorted({0, len(text), *cuts})
    return [text[a:b] for a, b in pairwise(at)]


def numbered() -> Assembly:
    ids = count()
    return Assembly(lambda: f"c{next(ids)}")


def play(parts: list[tuple[int, str | None, str]]) -> list[Step]:
    assembly = numbered()
    steps: list[Step] = []
    for index, name, arguments in parts:
        steps += assembly.add(index, name=name, arguments=arguments)
    return steps + assembly.finish()


def whole(steps: list[Step]) -> list[tuple[str, str, str]]:
    return [(s.call_id, s.name, s.arguments) for s in steps if isinstance(s, CallWhole)]


@given(st.lists(st.lists(st.integers(0, 40), max_size=8), min_size=3, max_size=3))
def test_however_arguments_are_cut_the_calls_are_whole_once_and_in_order(cuts: list[list[int]]) -> None:
    parts: list[tuple[int, str | None, str]] = []
    for index, (_, name, arguments) in enumerate(CALLS):
        parts.append((index, name, ""))
        parts += [(index, None, piece) for piece in pieces(arguments, cuts[index])]
    assert whole(play(parts)) == CALLS


@given(st.randoms(use_true_random=False), st.lists(st.lists(st.integers(0, 40), max_size=6), min_size=3, max_size=3))
def test_interleaved_fragments_come_together_by_index(random: object, cuts: list[list[int]]) -> None:
    todo = {index: pieces(call[2], cuts[index]) for index, call in enumerate(CALLS)}
    parts: list[tuple[int, str | None, str]] = [(i, c[1], "") for i, c in enumerate(CALLS)]
    while todo:
        index = random.choice(list(todo))  # type: ignore[attr-defined]
        parts.append((index, None, todo[index].pop(0)))
        if not todo[index]:
            del todo[index]
    steps = play(parts)
    assert sorted(whole(steps)) == sorted(CALLS)
    for call_id, _, _ in CALLS:
        own = [step for step in steps if step.call_id == call_id]
        assert isinstance(own[0], CallStarted)
        assert isinstance(own[-1], CallWhole)
        assert all(isinstance(step, CallFragment) for step in own[1:-1])


def test_a_call_is_whole_the_moment_the_next_one_begins() -> None:
    assembly = numbered()
    assembly.add(0, name="clock", arguments='{"zone":"UTC"}')
    steps = assembly.add(1, name="clock", arguments="")
    assert steps == [CallWhole(0, "c0", "clock", '{"zone":"UTC"}'), CallStarted(1, "c1", "clock")]


def test_nothing_follows_the_end_of_a_call() -> None:
    assembly = numbered()
    assembly.add(0, name="clock", arguments="{}")
    assembly.add(1, name="clock", arguments="{}")
    assert assembly.add(0, name=None, arguments='{"late":1}') == []
    assert assembly.finish() == [CallWhole(1, "c1", "clock", "{}")]


def test_what_never_became_json_is_handed_on_as_it_is_and_not_as_an_empty_object() -> None:
    assembly = numbered()
    assembly.add(0, name="search", arguments='{"query":')
    assembly.add(1, name="clock", arguments="{}")
    assert whole(assembly.finish()) == [("c0", "search", '{"query":'), ("c1", "clock", "{}")]


def test_every_call_gets_an_id_that_is_unique_in_the_world() -> None:
    ids = [Assembly().add(0, name="clock", arguments="{}")[0].call_id for _ in range(100)]
    assert len(set(ids)) == 100
