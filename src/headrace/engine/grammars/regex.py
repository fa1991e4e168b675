"""A regular expression as a grammar (GBNF), for libraries that cannot be trusted with regular expressions.

The two are close: choices, groups, classes and repetitions are written alike. The expression is about the whole answer,
so anchors at its ends say nothing; `\\w` and `\\d` are about ASCII. What looks around (`(?=`, `\\b`) or refers back is
refused, and mistakes in the rest are left to whoever reads the grammar.
"""

import re

_TOKEN = re.compile(
    r"""
    (?P<class> \[\^?\]?(?:\\.|[^\]\\])*\] )
  | (?P<open> \((?:\?(?::|P<\w+>))? )
  | (?P<sign> [|)] )
  | (?P<times> (?:[*+?]|\{\d*,?\d*\})\?? )
  | (?P<code> \\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}) )
  | (?P<escape> \\. )
  | (?P<plain> [^\\\[] )
    """,
    re.VERBOSE | re.DOTALL,
)
_BOUNDS = re.compile(r"\{(\d*)(,?)(\d*)\}")
_IN_CLASS = re.compile(r"\\(.)|(\n)", re.DOTALL)
_CATEGORIES = {"d": "0-9", "w": "0-9A-Za-z_", "s": r" \t\n\r"}
_CONTROLS = {"n": r"\n", "r": r"\r", "t": r"\t"}
_SPECIAL_IN_CLASS = "]^-"


def regex_grammar(pattern: str) -> str:
    """Raises ValueError for what cannot be said in a grammar."""
    body = pattern.removeprefix("^")
    if body.endswith("$") and not body.endswith("\\$"):
        body = body[:-1]
    written: list[str] = []
    at, repeatable = 0, False
    while at < len(body):
        found = _TOKEN.match(body, at)
        if found is None or found.lastgroup is None:
            raise _unknown(body[at:])
        kind, text = found.lastgroup, found[0]
        times = _times(text) if kind == "times" else None
        if kind == "times" and (times is None or not repeatable):
            if not text.startswith("{"):
                raise _unknown(text)
            kind, text = "plain", "{"  # it stands for itself
        at += len(text)
        written.append(times if kind == "times" and times is not None else _part(kind, text))
        repeatable = kind in ("class", "code", "escape", "plain") or text == ")"
    return f"root ::= {' '.join(written)}"


def _part(kind: str, text: str) -> str:
    match kind:
        case "class":
            return _class(text[1:-1])
        case "open":
            return "("
        case "sign":
            return text
        case "code":
            return f'"{text}"'
        case "escape":
            return _escape(text[1])
        case _:
            return _plain(text)


def _plain(character: str) -> str:
    if character in "^$":
        raise _unknown(character)
    return r"[^\n]" if character == "." else _literal(character)


def _escape(letter: str) -> str:
    if letter.lower() in _CATEGORIES:
        return f"[{'^' if letter.isupper() else ''}{_CATEGORIES[letter.lower()]}]"
    if letter in _CONTROLS:
        return f'"{_CONTROLS[letter]}"'
    if letter.isalnum():
        raise _unknown(f"\\{letter}")
    return _literal(letter)


def _literal(character: str) -> str:
    escaped = {"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"}.get(character, character)
    return f'"{escaped}"'


def _class(members: str) -> str:
    negation = "^" if members.startswith("^") else ""
    members = members[len(negation) :]
    if members.startswith("]"):
        members = "\\" + members
    return f"[{negation}{_IN_CLASS.sub(_member, members)}]"


def _member(found: re.Match[str]) -> str:
    if found[2]:
        return r"\n"
    letter = found[1]
    if letter in _CATEGORIES:
        return _CATEGORIES[letter]
    if letter in _CONTROLS or letter in "xu\\":
        return f"\\{letter}"
    if letter.isalnum():
        raise _unknown(f"\\{letter}")
    return f"\\{letter}" if letter in _SPECIAL_IN_CLASS else letter


def _times(text: str) -> str | None:
    """None for braces that hold no numbers, which stand for themselves. Greedy or not, the same texts match."""
    if text[0] != "{":
        return text[0]
    found = _BOUNDS.match(text)
    if found is None or not (found[1] or found[3]):
        return None
    return f"{{{found[1] or 0}{found[2]}{found[3]}}}"


def _unknown(what: str) -> ValueError:
    return ValueError(f"The regular expression cannot be made a grammar at {what[:40]!r}.")
