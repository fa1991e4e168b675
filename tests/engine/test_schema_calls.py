"""Tool calls by schema: what is asked, and calls and words out of the JSON that comes, wherever it is cut."""

import json
import random
from typing import Any

import pytest

from headrace.engine.port import Chunk, ModelRequest, Text, ToolCallPart
from headrace.engine.schema_calls import CallsFromJson, by_schema
from headrace.errors import EngineRejected
from headrace.messages import Message, ToolRequest, ToolSpec

WEATHER = ToolSpec(
    name="weather",
    description="The weather in a city.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
CLOCK = ToolSpec(name="clock")
ASK = (Message(role="user", content="How is the weather in Rome?"),)


def asked(**fields: Any) -> ModelRequest:
    return by_schema(ModelRequest(**({"messages": ASK, "tools": (WEATHER, CLOCK)} | fields)))


def names(request: ModelRequest) -> list[str]:
    """The calls that the schema allows, and `reply` if words are allowed."""
    assert request.json_schema is not None
    shapes = [shape["properties"] for shape in request.json_schema["anyOf"]]
    return [shape["name"]["const"] if "name" in shape else "reply" for shape in shapes]


@pytest.mark.parametrize(
    ("choice", "allowed"),
    [
        (None, ["weather", "clock", "reply"]),
        ("auto", ["weather", "clock", "reply"]),
        ("required", ["weather", "clock"]),
        ("clock", ["clock"]),
        ("none", ["reply"]),
    ],
)
def test_the_choice_decides_what_the_schema_allows(choice: str | None, allowed: list[str]) -> None:
    request = asked(tool_choice=choice)
    assert names(request) == allowed
    assert (request.tools, request.tool_choice) == ((), None)
    assert "- weather: The weather in a city." in request.messages[0].content or choice in ("clock", "none")
    assert request.messages[1:] == ASK


def test_without_tools_nothing_is_added() -> None:
    assert asked(tools=()) == ModelRequest(messages=ASK)


def test_instructions_stand_behind_the_agents_own() -> None:
    request = asked(messages=(Message(role="system", content="Be kind."), *ASK))
    assert [message.role for message in request.messages] == ["system", "user"]
    assert request.messages[0].content.startswith("Be kind.\n\nYou can use these tools:")


def test_what_the_conversation_has_of_calls_is_told_in_words() -> None:
    call = ToolRequest(call_id="c1", name="weather", arguments='{"city": "Rome"}')
    other = ToolRequest(call_id="c2", name="clock", arguments="{}")
    history = (
        *ASK,
        Message(role="assistant", content="I look.", tool_calls=(call, other)),
        Message(role="tool", content="Sunny", call_id="c1"),
        Message(role="tool", content="Noon", call_id="c2"),
    )
    told = asked(messages=history, tools=()).messages
    assert [message.role for message in told] == ["user", "assistant", "user"]
    assert (
        told[1].content
        == 'I look.\n{"name": "weather", "arguments": {"city": "Rome"}}\n{"name": "clock", "arguments": {}}'
    )
    assert told[2].content == "The result of weather: Sunny\nThe result of clock: Noon"
    assert not any(message.tool_calls or message.call_id for message in told)


def test_definitions_of_two_tools_do_not_meet() -> None:
    def using(kind: str) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {"it": {"$ref": "#/$defs/It"}, "all": {"type": "array", "items": {"$ref": "#/$defs/It"}}},
            "$defs": {"It": {"type": kind}},
        }

    tools = (ToolSpec(name="a", parameters=using("string")), ToolSpec(name="b", parameters=using("number")))
    schema = asked(tools=tools).json_schema
    assert schema is not None
    for number, kind in enumerate(("string", "number")):
        target = f"t{number}_It"
        arguments = schema["anyOf"][number]["properties"]["arguments"]
        assert arguments["properties"]["it"] == arguments["properties"]["all"]["items"] == {"$ref": f"#/$defs/{target}"}
        assert schema["$defs"][target] == {"type": kind}
        assert "$defs" not in arguments


def test_a_reply_that_was_cut_goes_on_in_words() -> None:
    rest = asked(continued="It is su", tool_choice="auto")
    assert (rest.continued, rest.json_schema, rest.tools) == ("It is su", None, ())
    with pytest.raises(EngineRejected, match="continued"):
        asked(continued="It is su", tool_choice="required")


@pytest.mark.parametrize("field", ["json_schema", "grammar"])
def test_what_cannot_be_asked_beside_tools_is_refused_by_name(field: str) -> None:
    value: Any = {} if field == "json_schema" else "x"
    with pytest.raises(EngineRejected, match=field):
        asked(**{field: value})
    assert getattr(asked(tool_choice="none", **{field: value}), field) == value


ARGUMENTS = '{"city": "R\\"o}me", "deep": [{"a": "{"}, 2], "emoji": "\\ud83d\\ude00"}'
WORDS = 'It is "fine" \\ 😀 día\n帮 /'


def pieces(text: str, cuts: random.Random | None) -> list[str]:
    if cuts is None:
        return list(text)
    out = []
    while text:
        length = cuts.randint(1, 9)
        out.append(text[:length])
        text = text[length:]
    return out


@pytest.mark.parametrize("seed", [None, *range(20)])
@pytest.mark.parametrize("space", ["", " ", "\n  "])
def test_a_call_and_its_arguments_come_out_wherever_the_json_is_cut(seed: int | None, space: str) -> None:
    said = (
        f'{space}{{{space}"name"{space}:{space}"get \\u0022it"{space},{space}"arguments"{space}: {ARGUMENTS}{space}}} '
    )
    chunks = fed(said, None if seed is None else random.Random(seed))
    first, *rest = chunks
    assert isinstance(first, ToolCallPart)
    assert (first.index, first.name, bool(first.call_id)) == (0, 'get "it', True)
    parts = [part for part in rest if isinstance(part, ToolCallPart)]
    assert len(parts) == len(rest)
    assert "".join(part.arguments for part in parts) == ARGUMENTS
    assert all(part.arguments and part.name is None for part in parts)


@pytest.mark.parametrize("seed", [None, *range(20)])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_words_come_out_whole_wherever_the_json_is_cut(seed: int | None, ascii_only: bool) -> None:
    said = json.dumps({"reply": WORDS}, ensure_ascii=ascii_only).replace("/", "\\/")
    chunks = fed(said, None if seed is None else random.Random(seed))
    assert all(isinstance(chunk, Text) and chunk.text for chunk in chunks)
    texts = [chunk.text for chunk in chunks if isinstance(chunk, Text)]
    assert "".join(texts) == WORDS
    assert all(text.encode() for text in texts), "no half surrogate pair"


def test_what_comes_after_the_object_is_nothing() -> None:
    assert "".join(c.text for c in fed('{"reply": "yes"} and "more"', None) if isinstance(c, Text)) == "yes"


def fed(said: str, cuts: random.Random | None) -> list[Chunk]:
    answer = CallsFromJson()
    return [chunk for piece in pieces(said, cuts) for chunk in answer.feed(piece)]
