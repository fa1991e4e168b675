"""A grammar (GBNF) as a regular expression of Python, so that tests can see what it lets through."""

import re

_PARTS = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|[A-Za-z]\w*|\{[\d,]+\}|[()|*?+]')

_ESCAPE = re.compile(r"\\(?:x(..)|u(....)|(.))", re.DOTALL)


def regex(grammar: str, *, depth: int = 4) -> str:
    """The grammar as a regular expression; what holds itself more than `depth` times matches nothing."""
    rules = dict(line.split(" ::= ", 1) for line in grammar.splitlines())

    def expand(name: str, trail: tuple[str, ...]) -> str:
        if trail.count(name) >= depth:
            return "(?!)"
        return f"(?:{''.join(part(token, (*trail, name)) for token in _PARTS.findall(rules[name]))})"

    def part(token: str, trail: tuple[str, ...]) -> str:
        if token.startswith('"'):
            return f"(?:{re.escape(_ESCAPE.sub(_character, token[1:-1]))})"
        if token.startswith("["):
            return token
        return expand(token, trail) if token[0].isalpha() else "(?:" if token == "(" else token

    return expand("root", ())


def _character(found: re.Match[str]) -> str:
    code = found[1] or found[2]
    return chr(int(code, 16)) if code else {"n": "\n", "r": "\r", "t": "\t"}.get(found[3], found[3])
