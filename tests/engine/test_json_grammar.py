"""JSON Schemas as grammars: what they let through is what the schema allows, without blanks."""

import itertools
import json
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grammar_regex import regex
from headrace.engine.grammars.json_schema import compact_grammar


def lets_through(schema: Any, text: str, *, depth: int = 4) -> bool:
    grammar = compact_grammar(schema)
    assert grammar is not None
    return re.fullmatch(regex(grammar, depth=depth), text) is not None


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


MEMBERS = {"a": {"const": 1}, "b": {"const": "zwei"}, "c": {"type": "null"}}
VALUES = {"a": 1, "b": "zwei", "c": None}


@pytest.mark.parametrize(
    "required", [list(some) for n in range(4) for some in itertools.combinations("abc", n)], ids=str
)
def test_an_object_has_its_required_members_and_any_of_the_others_in_order(required: list[str]) -> None:
    schema = {"type": "object", "properties": MEMBERS, "required": required, "additionalProperties": False}
    for given_ in (some for n in range(4) for some in itertools.combinations("abc", n)):
        text = compact({name: VALUES[name] for name in given_})
        assert lets_through(schema, text) == (set(required) <= set(given_)), text
    for text in ('{"a":1,}', '{,"c":null}', '{"a":1"b":"zwei"}', '{"a": 1}', '{"d":1}', "{", '{"b":"zwei","a":1}'):
        assert not lets_through(schema, text)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer"}, [0, -7, 1234567], [1.5, "1", None]),
        ({"type": "number"}, [0, -7, 1.5, 2.5e-07], ["1", None]),
        ({"type": "boolean"}, [True, False], [None, 0]),
        ({"type": ["string", "null"]}, ["", "é😀", None], [1]),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "帮你好"], ["a", "abcd"]),
        ({"enum": ["x", 'q"\\\n', 3, None]}, ["x", 'q"\\\n', 3, None], ["y", 4]),
        ({"const": {"k": [1, "ÿ"]}}, [{"k": [1, "ÿ"]}], [{}]),
        ({"type": "array", "items": {"type": "integer"}}, [[], [1], [1, 2, 3]], [["x"], [1, "x"]]),
        (
            {"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 3},
            [[1, 1], [1, 1, 1]],
            [[1], [1] * 4, []],
        ),
        ({"type": "array", "maxItems": 1}, [[], [1]], [[1, 2]]),
        ({"type": "array", "maxItems": 0}, [[]], [[1]]),
        ({"anyOf": [{"const": 1}, {"type": "null"}]}, [1, None], [2]),
        ({"type": "object"}, [{}, {"a": [1, {"b": None}]}], [1]),
        ({}, [1, "x", [None, {"a": True}]], []),
        (True, [1, {"a": 1}], []),
        ({"type": "string", "title": "T", "description": "D", "default": "d"}, ["x"], [1]),
    ],
    ids=str,
)
def test_a_schema_lets_through_what_it_allows(schema: Any, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        jsonschema.validate(value, schema)
        assert lets_through({"anyOf": [schema]}, compact(value)), value
    for value in bad:
        assert not lets_through({"anyOf": [schema]}, compact(value)), value


def test_a_schema_may_hold_itself() -> None:
    node = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}
    schema = {"$ref": "#/$defs/node", "$defs": {"node": {**node, "required": ["next"]}}}
    assert lets_through(schema, '{"next":{"next":{"next":null}}}', depth=5)
    assert not lets_through(schema, '{"next":{}}', depth=5)


@given(st.text(max_size=20))
def test_every_text_can_be_said_as_json(text: str) -> None:
    assert lets_through({"type": "string"}, json.dumps(text))
    assert lets_through({"type": "string"}, json.dumps(text, ensure_ascii=False))


@pytest.mark.parametrize("text", ['"\n"', '"\\x"', '"\\u12"', '"a""', "'a'", '"\t"'])
def test_what_is_no_json_string_is_not_let_through(text: str) -> None:
    assert not lets_through({"type": "string"}, text)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "a+"},
        {"type": "string", "format": "date"},
        {"type": "integer", "minimum": 3},
        {"type": "object", "properties": {}, "additionalProperties": True},
        {"type": "object", "properties": {"a": {}}, "required": ["b"]},
        {"type": "object", "properties": 5},
        {"type": "array", "prefixItems": [{}]},
        {"type": "array", "minItems": 3, "maxItems": 2},
        {"type": "string", "maxLength": "long"},
        {"allOf": [{}]},
        {"anyOf": []},
        {"anyOf": 5},
        {"enum": [1], "minimum": 0},
        {"$ref": "https://example.org/schema"},
        {"$ref": "#/$defs/none"},
        {"type": 5},
        {"not": {}},
        {"type": "object", "properties": {"a": {}}, "required": 5},
        {"type": "object", "properties": {"a": {}}, "required": [["a"]]},
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}}},
        {"anyOf": [False]},
    ],
    ids=str,
)
def test_what_no_rule_is_known_for_has_no_grammar(schema: dict[str, Any]) -> None:
    assert compact_grammar(schema) is None
