"""From a Python signature to what the model is told and what its arguments are checked against.

One struct type is made per function; msgspec gives both the JSON Schema and the validation, so the two cannot differ.
Runs once, when a function becomes a tool. Anything the model could not be told clearly is a ConfigError here.
"""

import inspect
import re
import typing
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin

import msgspec

from headrace.errors import ConfigError
from headrace.tools.port import ToolContext


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """`arguments` is a struct type with one field per parameter; `context` the parameter that wants a ToolContext."""

    description: str
    arguments: type[msgspec.Struct]
    schema: dict[str, Any]
    context: str | None


def read_signature(function: Callable[..., Any]) -> Signature:
    """Raises ConfigError for a signature that no JSON object can fill."""
    hints = _hints(function)
    description, documented = read_docstring(inspect.getdoc(function) or "")
    fields: list[Any] = []
    context = None
    for parameter in inspect.signature(function).parameters.values():
        hint = hints.get(parameter.name, Any)
        if _wants_context(hint):
            context = parameter.name
            continue
        fields.append(_field(function, parameter, hint))
        documented.update(_annotated_doc(parameter.name, hint))
    arguments = msgspec.defstruct(
        function.__name__, fields, kw_only=True, forbid_unknown_fields=True, module=function.__module__
    )
    schema = _object_schema(function, arguments, documented)
    return Signature(description=description, arguments=arguments, schema=schema, context=context)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as exc:
        raise ConfigError(
            f"The type hints of the tool {function.__name__} cannot be read: {exc}",
            hint="Import the types at module level, outside `if TYPE_CHECKING`.",
        ) from exc


def _wants_context(hint: Any) -> bool:
    return hint is ToolContext or ToolContext in get_args(hint)


def _field(function: Callable[..., Any], parameter: inspect.Parameter, hint: Any) -> Any:
    if parameter.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
        raise ConfigError(
            f"The tool {function.__name__} has the parameter {parameter}, which a model cannot fill by name.",
            hint="Use ordinary named parameters.",
        )
    if parameter.default is inspect.Parameter.empty:
        return (parameter.name, hint)
    if isinstance(parameter.default, list | dict | set):
        return (parameter.name, hint, msgspec.field(default_factory=parameter.default.copy))
    return (parameter.name, hint, parameter.default)


def _annotated_doc(name: str, hint: Any) -> dict[str, str]:
    """`Annotated[str, "doc"]`; a `msgspec.Meta(description=…)` is already in msgspec's schema."""
    if get_origin(hint) is not Annotated:
        return {}
    texts = [text for text in get_args(hint)[1:] if isinstance(text, str)]
    return {name: texts[0]} if texts else {}


def _object_schema(
    function: Callable[..., Any], arguments: type[msgspec.Struct], docs: dict[str, str]
) -> dict[str, Any]:
    try:
        (reference,), components = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    except (TypeError, NotImplementedError) as exc:
        raise ConfigError(
            f"A parameter of the tool {function.__name__} has a type that JSON cannot carry: {exc}",
            hint="Use str, int, float, bool, list, dict, Literal, Enum, a dataclass or a msgspec.Struct.",
        ) from exc
    own = components.pop(reference["$ref"].removeprefix("#/$defs/")) if "$ref" in reference else reference
    recursive = _recursive(components)
    schema = {
        "type": "object",
        "properties": {name: _inline(value, components, recursive) for name, value in own["properties"].items()},
        "required": own.get("required", []),
        "additionalProperties": False,
    }
    for name, text in docs.items():
        if name in schema["properties"]:
            schema["properties"][name].setdefault("description", text)
    kept = {name: _inline(components[name], components, recursive) for name in sorted(recursive)}
    return {**schema, "$defs": kept} if kept else schema


def _references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"].removeprefix("#/$defs/")} if isinstance(value.get("$ref"), str) else set()
        return own.union(*(_references(v) for v in value.values()))
    if isinstance(value, list):
        return set().union(*(_references(v) for v in value))
    return set()


def _recursive(components: dict[str, Any]) -> set[str]:
    """The types that contain themselves: they must stay references."""
    direct = {name: _references(value) for name, value in components.items()}

    def reach(name: str) -> set[str]:
        seen: set[str] = set()
        todo = list(direct[name])
        while todo:
            if (next_name := todo.pop()) not in seen:
                seen.add(next_name)
                todo += direct[next_name]
        return seen

    return {name for name in direct if name in reach(name)}


def _inline(value: Any, components: dict[str, Any], recursive: set[str]) -> Any:
    if isinstance(value, list):
        return [_inline(item, components, recursive) for item in value]
    if not isinstance(value, dict):
        return value
    reference = value.get("$ref")
    if isinstance(reference, str) and (name := reference.removeprefix("#/$defs/")) not in recursive:
        rest = {key: item for key, item in value.items() if key != "$ref"}
        return {**_inline(components[name], components, recursive), **rest}
    plain = {key: _inline(item, components, recursive) for key, item in value.items() if not _is_title(key, item)}
    if "type" not in plain and all(isinstance(option, str) for option in plain.get("enum", [0])):
        plain["type"] = "string"  # chat templates look for it
    return plain


def _is_title(key: str, item: Any) -> bool:
    """A class name, which says nothing to a model (a property called `title` holds a schema, not a text)."""
    return key == "title" and isinstance(item, str)


_SECTION = re.compile(r"^(Args|Arguments|Parameters):\s*$")
_ANY_SECTION = re.compile(r"^[A-Z][A-Za-z ]+:\s*$")
_GOOGLE = re.compile(r"^\s+\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")
_SPHINX = re.compile(r"^:param\s+(?:[\w\[\], |.]+\s+)?(\w+):\s*(.*)$")


def read_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """The first paragraph, and what is said of each parameter in Google's or Sphinx's manner."""
    lines = doc.splitlines()
    return _first_paragraph(lines), {**_google(lines), **_sphinx(lines)}


def _first_paragraph(lines: list[str]) -> str:
    taken: list[str] = []
    for line in lines:
        if (not line.strip() and taken) or _SECTION.match(line) or _SPHINX.match(line):
            break
        taken.append(line.strip())
    return " ".join(taken).strip()


def _google(lines: list[str]) -> dict[str, str]:
    start = next((at for at, line in enumerate(lines) if _SECTION.match(line)), None)
    found: dict[str, str] = {}
    name = None
    depth = 0
    for line in lines[start + 1 :] if start is not None else []:
        if _ANY_SECTION.match(line) or not line.strip():
            break
        indent = len(line) - len(line.lstrip())
        match = _GOOGLE.match(line)
        if match and (name is None or indent <= depth):
            name, depth = match[1], indent
            found[name] = match[2].strip()
        elif name is not None:
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found


def _sphinx(lines: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    name = None
    for line in lines:
        if match := _SPHINX.match(line.strip()):
            name = match[1]
            found[name] = match[2].strip()
        elif line.strip().startswith(":") or not line.strip():
            name = None
        elif name is not None:
            found[name] += f" {line.strip()}"
    return found
