"""The raw JSON of a tool call, read strictly.

Models send broken JSON, two values where one was asked for, half a surrogate pair. Each is an InvalidArguments that
says what is wrong, so that the model can mend it; none is ever taken for `{}`. The empty text is: many models send it
for a call without arguments, and a missing required parameter is then reported by name.
"""

import json
from typing import Any

import msgspec

from headrace.errors import InvalidArguments

_RETRY = "Call it again with one JSON object that fits its schema."


def parse_arguments(raw: str) -> dict[str, Any]:
    """The JSON object in `raw`.

    Raises:
        InvalidArguments: not one JSON object, a field given twice, or a value that JSON text cannot carry.
    """
    if not raw.strip():
        return {}
    try:
        value = json.loads(
            raw, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite, parse_int=_integer
        )
        msgspec.json.encode(value)  # half a surrogate pair cannot be written down again
    except InvalidArguments:
        raise
    except json.JSONDecodeError as exc:
        raise _broken(raw, exc) from exc
    except UnicodeEncodeError as exc:
        raise InvalidArguments(
            "A string in the arguments holds half a surrogate pair, which is not a character.",
            hint="Send whole characters, unescaped or as a complete \\uXXXX\\uXXXX pair.",
        ) from exc
    except (ValueError, RecursionError) as exc:
        raise InvalidArguments(f"The arguments cannot be read: {exc or type(exc).__name__}", hint=_RETRY) from exc
    if not isinstance(value, dict):
        raise InvalidArguments(f"The arguments are {_kind(value)}, not a JSON object: {_excerpt(raw)}", hint=_RETRY)
    return value


def is_whole(raw: str) -> bool:
    """Whether `raw` is one complete JSON object: nothing that could follow would make it a better one."""
    text = raw.strip()
    if not (text.startswith("{") and text.endswith("}")):
        return False
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _broken(raw: str, exc: json.JSONDecodeError) -> InvalidArguments:
    what = "more follows after the JSON object" if exc.msg == "Extra data" else f"not valid JSON ({exc.msg})"
    return InvalidArguments(f"The arguments are wrong at character {exc.pos}: {what}: {_excerpt(raw)}", hint=_RETRY)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidArguments(f"The field {twice!r} is given twice.", hint="Give every field once.")
    return found


def _no_constant(name: str) -> Any:
    raise InvalidArguments(f"{name} is not JSON.", hint="Use a finite number or null.")


def _finite(text: str) -> float | int:
    """Whole numbers become int: models write 3.0 for 3, and a float parameter takes an int as well."""
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise InvalidArguments(f"The number {text[:40]} is too large.", hint="Use a smaller number.")
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _integer(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= (value := int(text)) < 2**64:
        raise InvalidArguments(f"The number {text[:40]} does not fit in 64 bits.", hint="Use a smaller number.")
    return value


def _kind(value: object) -> str:
    names = {list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _excerpt(raw: str) -> str:
    """The text, shortened, with anything unprintable escaped."""
    shown = raw if len(raw) <= 200 else raw[:150] + " … " + raw[-40:]
    return shown.encode("utf-8", "backslashreplace").decode()
