"""How servers that call themselves compatible spell what OpenAI's API does not have, or has by another name.

A `Spelling` is data; `presets.py` says which server uses which. Every function gives fields of the request's body.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from headrace.messages import ToolSpec

Field = Callable[[Any], dict[str, Any]]
Tools = Callable[[tuple[ToolSpec, ...], str | None], dict[str, Any]]

_CHOICES = (None, "auto", "none", "required")


def named(name: str) -> Field:
    """The value as it is, under another name."""
    return lambda value: {name: value}


def response_format(schema: Any) -> dict[str, Any]:
    """A JSON Schema as OpenAI has it, and nearly everybody after it."""
    return {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema, "strict": True},
        }
    }


def typed_format(kind: str, key: str) -> Field:
    """`response_format` with a type of the server's own: `{"type": kind, key: value}`."""
    return lambda value: {"response_format": {"type": kind, key: value}}


def structured_outputs(key: str) -> Field:
    """vLLM, which called it `guided_regex` and so on before 0.12."""
    return lambda value: {"structured_outputs": {key: value}}


def tools_by_the_book(tools: tuple[ToolSpec, ...], choice: str | None) -> dict[str, Any]:
    fields: dict[str, Any] = {"tools": [_tool(tool) for tool in tools]}
    if choice is not None:
        named_tool = {"type": "function", "function": {"name": choice}}
        fields["tool_choice"] = choice if choice in _CHOICES else named_tool
    return fields


def strict_tools(tools: tuple[ToolSpec, ...], choice: str | None) -> dict[str, Any]:
    """For a server that holds the arguments of a call to their schema only if it is asked to."""
    fields = tools_by_the_book(tools, choice)
    for tool in fields["tools"]:
        tool["function"]["strict"] = True
    return fields


def tools_with_a_choice_always(tools: tuple[ToolSpec, ...], choice: str | None) -> dict[str, Any]:
    """For a server where no choice means `none`."""
    return tools_by_the_book(tools, choice or "auto")


def tools_without_names(tools: tuple[ToolSpec, ...], choice: str | None) -> dict[str, Any]:
    """For a server that takes words only: a tool is named by being the only one."""
    if choice in _CHOICES:
        return tools_by_the_book(tools, choice)
    return tools_by_the_book(tuple(tool for tool in tools if tool.name == choice), "required")


def tools_without_a_choice(tools: tuple[ToolSpec, ...], choice: str | None) -> dict[str, Any]:
    """For a server that reads no choice: it is told of no tools if it shall call none."""
    return {} if choice == "none" else tools_by_the_book(tools, None)


def _tool(tool: ToolSpec) -> dict[str, Any]:
    parameters = tool.parameters or {"type": "object", "properties": {}}
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": parameters},
    }


class Spelling(msgspec.Struct, frozen=True, kw_only=True):
    """`fields` are those of `ModelRequest` that need one; all others are sent under their own names, but for `scope`
    and `priority`, which only some servers know.

    `beginning` goes with an answer to go on with. A server with a `call` signs its tool calls and wants that back: it
    goes into every call of a turn whose signatures are not known. `stops` is how many stop strings the server takes,
    None for any number: the rest is found here.
    """

    fields: Mapping[str, Field] = msgspec.field(default_factory=dict)
    tools: Tools = tools_by_the_book
    beginning: Mapping[str, Any] = msgspec.field(default_factory=dict)
    call: Mapping[str, Any] = msgspec.field(default_factory=dict)
    stops: int | None = None


PLAIN = Spelling(
    fields={"json_schema": response_format},
    beginning={"continue_final_message": True, "add_generation_prompt": False},
)
"""For a server nobody has said anything about, as vLLM and SGLang have it where OpenAI has nothing."""
