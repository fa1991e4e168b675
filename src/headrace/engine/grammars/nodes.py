"""What a grammar (GBNF) is made of, and whether its rules come to an end."""

from collections.abc import Iterator, Mapping

import msgspec


class Said(msgspec.Struct, frozen=True):
    """Characters, or one of a class of them, as they are written."""

    written: str
    empty: bool = False


class Rule(msgspec.Struct, frozen=True):
    name: str


class Row(msgspec.Struct, frozen=True):
    parts: "tuple[Node, ...]"


class Choice(msgspec.Struct, frozen=True):
    ways: "tuple[Node, ...]"


class Times(msgspec.Struct, frozen=True):
    node: "Node"
    least: int
    most: int | None


Node = Said | Rule | Row | Choice | Times


def named(node: Node) -> Iterator[str]:
    """The rules that it uses, anywhere in it."""
    match node:
        case Rule(name=name):
            yield name
        case Row(parts=parts) | Choice(ways=parts):
            for part in parts:
                yield from named(part)
        case Times(node=inner):
            yield from named(inner)


def require_an_end(rules: Mapping[str, Node]) -> None:
    """No rule may begin with itself. Raises ValueError, naming one that does."""
    empty: set[str] = set()
    while more := {name for name, node in rules.items() if name not in empty and _may_be_empty(node, empty)}:
        empty |= more
    begins = {name: set(_beginnings(node, empty)) for name, node in rules.items()}
    for name in rules:
        seen: set[str] = set()
        ahead = set(begins[name])
        while ahead:
            seen |= ahead
            ahead = set().union(*(begins[other] for other in ahead)) - seen
        if name in seen:
            raise ValueError(f"The grammar's rule `{name}` begins with itself.")


def _may_be_empty(node: Node, rules: set[str]) -> bool:
    match node:
        case Said(empty=empty):
            return empty
        case Rule(name=name):
            return name in rules
        case Row(parts=parts):
            return all(_may_be_empty(part, rules) for part in parts)
        case Choice(ways=ways):
            return any(_may_be_empty(way, rules) for way in ways)
        case Times(node=inner, least=least):
            return least == 0 or _may_be_empty(inner, rules)


def _beginnings(node: Node, empty: set[str]) -> Iterator[str]:
    """The rules that may stand at the very beginning."""
    match node:
        case Rule(name=name):
            yield name
        case Row(parts=parts):
            for part in parts:
                yield from _beginnings(part, empty)
                if not _may_be_empty(part, empty):
                    return
        case Choice(ways=ways):
            for way in ways:
                yield from _beginnings(way, empty)
        case Times(node=inner):
            yield from _beginnings(inner, empty)
