r"""GBNF as OpenVINO's grammar library understands it.

It hands a grammar on as text in which a character such as ñ is `\xf1`, and reads such an escape as long as there are
hexadecimal digits: "ñandú" becomes U+0F1A and "ndú". `"\x41b"` it misreads in the same way. So the escapes are written
out, and nothing that looks like such a digit is left behind such a character: "ñ" "andú".
"""

import re

_TOKEN = re.compile(
    r"""
    (?P<comment> \#[^\n]* )
  | (?P<literal> "(?:\\.|[^"\\])*" )
  | (?P<class> \[(?:\\.|[^\]\\])*\] )
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_UNIT = r"(?:\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\.|[^\\])"
_MEMBER = re.compile(rf"{_UNIT}-{_UNIT}|{_UNIT}", re.DOTALL)
_MISREAD = re.compile("(?<=[\x00-\x1f\x7f-\xff])(?=[0-9a-fA-F])")
_SHORT = {"n": "\n", "r": "\r", "t": "\t"}
_WRITTEN = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})


def readable(grammar: str) -> str:
    """The same grammar, for the library."""
    return _TOKEN.sub(_token, grammar)


def _token(found: re.Match[str]) -> str:
    match found.lastgroup:
        case "literal":
            return _literal(_plain(found[0][1:-1]))
        case "class":
            return _class(found[0][1:-1])
        case _:
            return ""


def _literal(text: str) -> str:
    parts = [f'"{part.translate(_WRITTEN)}"' for part in _MISREAD.split(text)]
    return parts[0] if len(parts) == 1 else f"({' '.join(parts)})"  # a repetition may follow


def _class(members: str) -> str:
    """Their order says nothing, so those that would be misread with what follows come last."""
    negation = "^" if members.startswith("^") else ""
    found = _MEMBER.findall(members[len(negation) :])
    return f"[{negation}{''.join(sorted(found, key=_is_misread))}]"


def _is_misread(member: str) -> bool:
    return _MISREAD.search(_plain(member)[-1] + "0") is not None


def _plain(text: str) -> str:
    """Escapes written out."""
    return _ESCAPE.sub(_character, text)


def _character(found: re.Match[str]) -> str:
    code = found[1] or found[2] or found[3]
    if code is None:
        return _SHORT.get(found[4], found[4])
    value = int(code, 16)
    return chr(value) if value <= 0x10FFFF else found[0]
