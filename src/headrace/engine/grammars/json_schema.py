"""A JSON Schema as a grammar (GBNF) whose JSON has no blanks between its parts.

For libraries that allow any number of blanks there: a small model that is forced into JSON is glad to write nothing
else until its room is full. Objects hold what the schema names and nothing more, in the order of the schema. A schema
that asks for more than is known here (patterns, bounds of numbers, further properties) has no such grammar.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

_SILENT = frozenset(
    {"$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples", "deprecated"}
)
_BASE = {
    "char": r'[^"\\\x00-\x1f] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F] [0-9a-fA-F] [0-9a-fA-F] [0-9a-fA-F])',
    "string": r'"\"" char* "\""',
    "integer": '"-"? ("0" | [1-9] [0-9]{0,15})',
    "number": 'integer ("." [0-9]{1,15})? ([eE] [-+]? [0-9]{1,3})?',
    "boolean": '"true" | "false"',
    "null": '"null"',
    "array": '"[" (value ("," value)*)? "]"',
    "object": r'"{" (string ":" value ("," string ":" value)*)? "}"',
    "value": "string | number | boolean | null | array | object",
}


def compact_grammar(schema: Mapping[str, Any]) -> str | None:
    """None for a schema that cannot be written so, or that is none: whoever is given it then says why."""
    try:
        return _Rules(schema).text()
    except (_Unknown, RecursionError):
        return None


class _Unknown(Exception):
    """Something in the schema that no rule is known for."""


class _Rules:
    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self._rules = dict(_BASE)
        self._named: dict[str, str] = {}
        self._open: frozenset[str] = frozenset()  # references that nothing has been written for since

    def text(self) -> str:
        root = self._of(self._schema)
        return "\n".join(f"{name} ::= {body}" for name, body in {"root": root, **self._rules}.items())

    def _of(self, schema: object) -> str:
        """An expression that may stand in any place."""
        if schema is True:
            return "value"
        if not isinstance(schema, Mapping):
            raise _Unknown
        asked = {name: value for name, value in schema.items() if name not in _SILENT}
        if not asked:
            return "value"
        for name, write in (("$ref", self._ref), ("const", _literal), ("enum", self._enum)):
            if name in asked:
                return write(_only(asked, name))
        for name in ("anyOf", "oneOf"):
            if name in asked:
                return _either([self._of(one) for one in _sequence(_only(asked, name))])
        return self._typed(asked.pop("type", None), asked)

    def _typed(self, kind: object, asked: dict[str, Any]) -> str:
        match kind:
            case "object":
                return self._object(asked)
            case "array":
                return self._array(asked)
            case "string":
                return self._string(asked)
            case "integer" | "number" | "boolean" | "null" if not asked:
                return kind
            case list() if not asked:
                return _either([self._typed(one, {}) for one in kind])
            case _:
                raise _Unknown

    def _ref(self, ref: object) -> str:
        """A rule of its own, so that a schema may hold itself; but not before anything else."""
        if not isinstance(ref, str) or not ref.startswith("#") or ref in self._open:
            raise _Unknown
        if ref not in self._named:
            self._named[ref] = name = f"ref{len(self._named)}"
            before, self._open = self._open, self._open | {ref}
            self._rules[name] = self._of(_at(self._schema, ref))
            self._open = before
        return self._named[ref]

    def _inside(self, schema: object) -> str:
        """What stands within brackets or braces, and so does not begin anything."""
        before, self._open = self._open, frozenset()
        expression = self._of(schema)
        self._open = before
        return expression

    def _enum(self, values: object) -> str:
        return _either([_literal(value) for value in _sequence(values)])

    def _string(self, asked: dict[str, Any]) -> str:
        least, most = asked.pop("minLength", 0), asked.pop("maxLength", None)
        _require_nothing(asked)
        return "string" if (least, most) == (0, None) else rf'"\"" char{_times(least, most)} "\""'

    def _array(self, asked: dict[str, Any]) -> str:
        item = self._inside(asked.pop("items", True))
        least, most = asked.pop("minItems", 0), asked.pop("maxItems", None)
        _require_nothing(asked)
        if most == 0:
            return '"[]"'
        more = f'{item} ("," {item}){_times(max(0, least - 1), None if most is None else most - 1)}'
        return f'"[" {more} "]"' if least else f'"[" ({more})? "]"'

    def _object(self, asked: dict[str, Any]) -> str:
        properties, required = asked.pop("properties", None), _names(asked.pop("required", []))
        if asked.pop("additionalProperties", False) is not False or not isinstance(properties, Mapping | None):
            raise _Unknown
        _require_nothing(asked)
        if properties is None:
            return "object"
        if not required <= set(properties):
            raise _Unknown
        return f'"{{" {self._members(properties, required)} "}}"'

    def _members(self, properties: Mapping[str, Any], required: set[str]) -> str:
        """Built from the end: what may follow when nothing stands before it, and when a comma is due."""
        alone, after = '""', '""'
        for name, schema in reversed(list(properties.items())):
            member = f'{_literal(name)} ":" {self._inside(schema)}'
            tail = self._rule(after)
            if name in required:
                alone, after = f"{member} {tail}", f'"," {member} {tail}'
            else:
                alone, after = f"({member} {tail} | {alone})", f'("," {member})? {tail}'
        return alone

    def _rule(self, body: str) -> str:
        name = f"rule{len(self._rules)}"
        self._rules[name] = body
        return name


def _literal(value: object) -> str:
    """JSON text as a string of the grammar."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _either(choices: list[str]) -> str:
    if not choices:
        raise _Unknown
    return f"({' | '.join(choices)})"


def _times(least: object, most: object) -> str:
    if (
        not isinstance(least, int)
        or not isinstance(most, int | None)
        or least < 0
        or (most is not None and most < least)
    ):
        raise _Unknown
    return f"{{{least},{'' if most is None else most}}}"


def _only(asked: dict[str, Any], name: str) -> Any:
    """Its value; a type beside it says nothing new."""
    if set(asked) - {name, "type"}:
        raise _Unknown
    return asked[name]


def _sequence(value: object) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise _Unknown
    return value


def _names(value: object) -> set[str]:
    names = _sequence(value)
    if not all(isinstance(name, str) for name in names):
        raise _Unknown
    return set(names)


def _require_nothing(asked: dict[str, Any]) -> None:
    if asked:
        raise _Unknown


def _at(schema: Any, ref: str) -> Any:
    """What a pointer such as `#/$defs/name` leads to."""
    for step in ref.split("/")[1:]:
        try:
            schema = schema[step.replace("~1", "/").replace("~0", "~")]
        except (KeyError, TypeError) as exc:
            raise _Unknown from exc
    return schema
