r"""GBNF, read in full and written again so that XGrammar understands it, the grammar library of OpenVINO and others.

Read in full, because a grammar that the library cannot compile fails the step of every answer at once and may crash the
process: what is handed on must be right. Written again, because the library keeps a character such as ñ as `\xf1` and
reads such an escape for as long as there are hexadecimal digits: "ñandú" becomes U+0F1A and "ndú". So nothing that
looks like such a digit is left behind such a character: "ñ" "andú".
"""

import re
from collections.abc import Iterator

from headrace.engine.grammars.nodes import Choice, Node, Row, Rule, Said, Times, named, require_an_end

_TOKEN = re.compile(
    r"""
    (?P<blank> \s+ | \#[^\n]* )
  | (?P<literal> "(?:\\.|[^"\\\n])*" )
  | (?P<class> \[(?:\\.|[^\]\\\n])*\] )
  | (?P<head> [A-Za-z_][\w-]* (?=\s*::=) )
  | (?P<name> [A-Za-z_][\w-]* )
  | (?P<times> [*+?] | \{\d+(?:,\d*)?\} )
  | (?P<sign> ::= | [|()] )
    """,
    re.VERBOSE | re.DOTALL,
)
_UNIT = r"(?:\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\.|[^\\])"
_MEMBER = re.compile(rf"({_UNIT})-({_UNIT})|({_UNIT})", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_KNOWN_ESCAPES = {
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "\\": "\\",
    '"': '"',
    "[": "[",
    "]": "]",
    "-": "-",
    "^": "^",
    "/": "/",
}
_MISREAD = re.compile("(?<=[\x00-\x1f\x7f-\xff])(?=[0-9a-fA-F])")
_CONTROLS = {chr(code): f"\\x{code:02x}" for code in range(32)} | {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_IN_LITERAL = str.maketrans(_CONTROLS | {"\\": "\\\\", '"': '\\"'})
_IN_CLASS = str.maketrans(_CONTROLS | {"\\": "\\\\", "]": "\\]", "-": "\\-", "^": "\\^"})
_MOST = 2000  # repetitions that are written out one by one


def readable(grammar: str) -> str:
    """The same grammar for the library. Raises ValueError, saying what is wrong with it."""
    try:
        return _rewritten(_Reader(grammar).rules())
    except RecursionError:
        raise ValueError("The grammar's brackets are nested too deeply.") from None


def _rewritten(rules: dict[str, Node]) -> str:
    if "root" not in rules:
        raise ValueError("The grammar has no rule `root`.")
    for name, node in rules.items():
        for other in named(node):
            if other not in rules:
                raise ValueError(f"The grammar's rule `{name}` needs a rule `{other}`, which is not defined.")
    require_an_end(rules)
    return "\n".join(f"{name} ::= {_written(node)}" for name, node in rules.items())


class _Reader:
    def __init__(self, grammar: str) -> None:
        self._tokens = list(_tokens(grammar))
        self._at = 0

    def rules(self) -> dict[str, Node]:
        rules: dict[str, Node] = {}
        while self._kind():
            name = self._take("head")
            self._take("sign", "::=")
            if name in rules:
                raise ValueError(f"The grammar defines the rule `{name}` twice.")
            rules[name] = self._choice()
        return rules

    def _choice(self) -> Node:
        ways = [self._row()]
        while self._next() == ("sign", "|"):
            self._at += 1
            ways.append(self._row())
        return ways[0] if len(ways) == 1 else Choice(tuple(ways))

    def _row(self) -> Node:
        parts: list[Node] = []
        while self._kind() in ("literal", "class", "name") or self._next() == ("sign", "("):
            part = self._part()
            while self._kind() == "times":
                part = _repeated(part, self._take("times"))
            parts.append(part)
        return parts[0] if len(parts) == 1 else Row(tuple(parts))

    def _part(self) -> Node:
        kind, text = self._next()
        self._at += 1
        match kind:
            case "literal":
                return _literal(_plain(text[1:-1]))
            case "class":
                return _class(text[1:-1])
            case "name":
                return Rule(text)
            case _:
                inner = self._choice()
                self._take("sign", ")")
                return inner

    def _next(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("", "its end")

    def _kind(self) -> str:
        return self._next()[0]

    def _take(self, kind: str, text: str | None = None) -> str:
        found, said = self._next()
        if found != kind or text not in (None, said):
            raise ValueError(
                f"The grammar cannot be read at {said[:40]!r}: {text or 'the name of a rule'} is expected."
            )
        self._at += 1
        return said


def _tokens(grammar: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(grammar):
        found = _TOKEN.match(grammar, at)
        if found is None or found.lastgroup is None:
            raise ValueError(f"The grammar cannot be read at {grammar[at : at + 40]!r}.")
        if found.lastgroup != "blank":
            yield found.lastgroup, found[0]
        at = found.end()


def _repeated(node: Node, times: str) -> Times:
    if times in "*+?":
        return Times(node, int(times == "+"), 1 if times == "?" else None)
    least, comma, most = times[1:-1].partition(",")
    bounds = int(least), (int(most) if most else None) if comma else int(least)
    if bounds[0] > _MOST or (bounds[1] is not None and not bounds[0] <= bounds[1] <= _MOST):
        raise ValueError(f"The grammar repeats {times}: from a smaller number to a larger one, {_MOST} at most.")
    return Times(node, *bounds)


def _literal(text: str) -> Said:
    parts = [f'"{part.translate(_IN_LITERAL)}"' for part in _MISREAD.split(text)]
    return Said(parts[0] if len(parts) == 1 else f"({' '.join(parts)})", empty=not text)


def _class(members: str) -> Said:
    """Their order says nothing, so those that would be misread with what follows come last."""
    negation = "^" if members.startswith("^") else ""
    spans = [
        (_plain(first or single), _plain(last or single))
        for first, last, single in _MEMBER.findall(members[len(negation) :])
    ]
    if not spans or any(first > last for first, last in spans):
        raise ValueError(f"The grammar's class [{members[:40]}] holds nothing, or a range that runs backwards.")
    spans.sort(key=lambda span: _MISREAD.search(span[1] + "0") is not None)
    written = (_member(first) if first == last else f"{_member(first)}-{_member(last)}" for first, last in spans)
    return Said(f"[{negation}{''.join(written)}]")


def _member(character: str) -> str:
    return character.translate(_IN_CLASS)


def _plain(text: str) -> str:
    """Escapes written out."""
    return _ESCAPE.sub(_character, text)


def _character(found: re.Match[str]) -> str:
    code = found[1] or found[2] or found[3]
    if code is None and found[4] in _KNOWN_ESCAPES:
        return _KNOWN_ESCAPES[found[4]]
    value = int(code, 16) if code is not None else -1
    if not 0 <= value <= 0x10FFFF or 0xD800 <= value < 0xE000:
        raise ValueError(f"The grammar has an escape that is no character: {found[0]}")
    return chr(value)


def _written(node: Node) -> str:
    match node:
        case Said(written=written):
            return written
        case Rule(name=name):
            return name
        case Row(parts=parts):
            return f"({' '.join(map(_written, parts))})" if parts else '""'
        case Choice(ways=ways):
            return f"({' | '.join(map(_written, ways))})"
        case Times(node=inner, least=least, most=most):
            return f"({_written(inner)}){{{least},{'' if most is None else most}}}"
