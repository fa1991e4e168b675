"""What the two OpenAI requests share: reading them strictly enough to say what is wrong, and our start request.

Fields nobody here knows are ignored, as OpenAI's own servers and every compatible one do. A field that is known and
would be disobeyed in silence (`n: 3`, an image) is refused.
"""

import re
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from headrace.errors import InvalidRequest
from headrace.messages import Message, ToolSpec
from headrace.wire.codec import nests_too_deep

T = TypeVar("T")

_json = msgspec.json.Encoder()
_PLACE = re.compile(r" - at `(?:key in )?\$\.?(.*)`$")
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal"})


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """A run to be started, in a thread that the caller chooses. `options` are named as engines know them."""

    agent: str
    input: tuple[Message, ...]
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    client_tools: tuple[ToolSpec, ...] = ()
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)


class Part(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None
    refusal: str | None = None


Content = str | tuple[Part, ...] | None


def decode(body: bytes, wanted: type[T]) -> T:
    """The body as JSON of a type. Raises InvalidRequest with the field that does not fit."""
    try:
        value = msgspec.json.decode(body, type=wanted)
        _json.encode(value)  # a lone surrogate can be read but never written
    except msgspec.ValidationError as exc:
        place = _PLACE.search(str(exc))
        message = _PLACE.sub("", str(exc))
        missing = re.search(r"missing required field `(\w+)`", message)
        field = ".".join(filter(None, [place and place[1], missing and missing[1]]))
        raise InvalidRequest(f"{field}: {message}." if field else f"{message}.", field=field or None) from exc
    except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
        raise InvalidRequest(f"The body is not valid JSON: {exc}.", hint="Send a JSON object in UTF-8.") from exc
    if nests_too_deep(body):
        raise InvalidRequest("The body's JSON is nested too deeply.", hint="A hundred levels are fine.")
    return value


def text_of(content: Content, field: str) -> str:
    """The text of a string or of parts, which must all be text. Raises InvalidRequest."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(_part_text(part, f"{field}[{i}]") for i, part in enumerate(content))


def _part_text(part: Part, field: str) -> str:
    if part.type not in _TEXT_PARTS:
        raise InvalidRequest(f"Parts of type {part.type[:64]!r} cannot be read here, only text.", field=field)
    return part.text or part.refusal or ""


def tool_specs(tools: Sequence[tuple[str, str | None, dict[str, Any] | None]]) -> tuple[ToolSpec, ...]:
    """The client's tools from (name, description, parameters). Raises InvalidRequest."""
    names: set[str] = set()
    for i, (name, _, _) in enumerate(tools):
        if not _TOOL_NAME.fullmatch(name):
            raise InvalidRequest(f"{name[:64]!r} is no tool name: letters, digits, _ . - only.", field=f"tools[{i}]")
        if name in names:
            raise InvalidRequest(f"There are two tools named {name!r}.", field=f"tools[{i}]")
        names.add(name)
    return tuple(ToolSpec(name=n, description=d or "", parameters=p or {}) for n, d, p in tools)


def require_function(kind: str, field: str) -> None:
    if kind != "function":
        raise InvalidRequest(f"Tools of type {kind[:64]!r} cannot be run here, only functions.", field=field)


def refuse(wrong: bool, field: str, message: str, hint: str | None = None) -> None:
    """Raises InvalidRequest if `wrong`."""
    if wrong:
        raise InvalidRequest(f"{field} {message}", hint=hint, field=field)


def token_limit(value: int | None, field: str) -> int | None:
    """Null is the default; a limit must leave room for a token."""
    refuse(value is not None and value <= 0, field, "must be at least 1, or null for the default.")
    return value


def within(value: float | None, low: float, high: float, field: str) -> float | None:
    refuse(value is not None and not low <= value <= high, field, f"must be from {low:g} to {high:g}.")
    return value


def json_schema_of(kind: str, schema: dict[str, Any] | None, field: str) -> dict[str, Any] | None:
    """What the answer must look like, or None for free text. Raises InvalidRequest."""
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    refuse(kind != "json_schema", f"{field}.type", "must be text, json_object or json_schema.")
    if schema is None:
        raise InvalidRequest(f"{field} has no schema.", field=field)
    return schema


def given(**options: Any) -> dict[str, Any]:
    """The options that are not None."""
    return {name: value for name, value in options.items() if value is not None}
