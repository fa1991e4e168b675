"""Checks what we send against the schema that OpenAI publishes (tests/dialects/openai_schema.json says which)."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

_DOCUMENT = json.loads((Path(__file__).parent / "dialects" / "openai_schema.json").read_text())
EVENT_SCHEMAS = {
    _DOCUMENT["components"]["schemas"][name]["properties"]["type"]["enum"][0]: name
    for name in (
        ref["$ref"].rsplit("/", 1)[1] for ref in _DOCUMENT["components"]["schemas"]["ResponseStreamEvent"]["oneOf"]
    )
}


@cache
def _validator(name: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": f"#/components/schemas/{name}", **_DOCUMENT})


def check(name: str, value: Any) -> None:
    """Raises jsonschema.ValidationError with the place that does not fit."""
    _validator(name).validate(value)


def check_event(value: dict[str, Any]) -> None:
    """A Responses stream event, by its type. KeyError for a type that the schema does not know."""
    check(EVENT_SCHEMAS[value["type"]], value)


def sse_data(stream: bytes) -> list[str]:
    """The data of each frame of a whole stream."""
    assert stream == b"" or stream.endswith(b"\n\n")
    frames = stream.decode().split("\n\n")[:-1]
    return [line.removeprefix("data: ") for frame in frames for line in frame.split("\n") if line.startswith("data: ")]
