import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidArguments
from headrace.tools.arguments import is_whole, parse_arguments

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=4)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ('{"a":1}{"b":2}', "more follows"),
        ('{"a":1} and so on', "more follows"),
        ('{"a":', "character 5"),
        ("{'a': 1}", "not valid JSON"),
        ('{"a":1,"a":2}', "'a' is given twice"),
        ('{"b":{"a":1,"a":2}}', "'a' is given twice"),
        ("[1]", "a list"),
        ('"text"', "a string"),
        ("null", "null"),
        ("true", "true or false"),
        ("3", "a number"),
        ('{"a":"\\ud83d"}', "surrogate"),
        ('{"a":"\ud83d"}', "surrogate"),
        ('{"a":NaN}', "NaN"),
        ('{"a":-Infinity}', "Infinity"),
        ('{"a":1e999}', "too large"),
        ('{"a":123456789012345678901234567890}', "64 bits"),
        ("[" * 100_000, "cannot be read"),
    ],
)
def test_what_is_no_json_object_is_refused_with_the_reason(raw: str, says: str) -> None:
    with pytest.raises(InvalidArguments) as caught:
        parse_arguments(raw)
    assert says in caught.value.message
    assert caught.value.hint
    caught.value.message.encode()  # whatever the model sent, the reason can be written down


def test_no_text_is_no_arguments_because_models_send_it_for_a_call_without_any() -> None:
    assert parse_arguments("") == parse_arguments(" \n") == {}


def test_a_whole_float_is_taken_for_the_integer_the_model_meant() -> None:
    assert parse_arguments('{"n":3.0,"x":3.5}') == {"n": 3, "x": 3.5}
    assert isinstance(parse_arguments('{"n":3.0}')["n"], int)


@given(OBJECTS)
def test_every_json_object_is_read_as_it_was_meant(value: dict[str, object]) -> None:
    assert parse_arguments(json.dumps(value)) == value
    assert parse_arguments(json.dumps(value, ensure_ascii=False)) == value


@given(OBJECTS, st.data())
def test_a_prefix_of_an_object_is_never_taken_for_whole(value: dict[str, object], data: st.DataObject) -> None:
    raw = json.dumps(value)
    assert is_whole(raw)
    assert not is_whole(raw[: data.draw(st.integers(0, len(raw) - 1))])
