"""A model of 135 million parameters, never taught to call tools, calls them by the rules every time."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from harness import run_async
from headrace.engine import models
from headrace.engine.llamacpp.engine import LlamaCppEngine
from headrace.engine.port import Chunk, Finish, ModelRequest, ToolCallPart
from headrace.messages import Message, ToolRequest, ToolSpec
from headrace.testing.engine_contract import collect, text_of

pytestmark = pytest.mark.model

TOOLS = (
    ToolSpec(
        name="weather",
        description="The weather in a city.",
        parameters={
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "unit": {"enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 7},
            },
            "required": ["city", "unit"],
        },
    ),
    ToolSpec(
        name="book",
        description="Book a table.",
        parameters={
            "type": "object",
            "properties": {"table": {"$ref": "#/$defs/Table"}},
            "required": ["table"],
            "$defs": {
                "Table": {
                    "type": "object",
                    "properties": {
                        "people": {"type": "integer", "minimum": 1, "maximum": 99},
                        "inside": {"type": "boolean"},
                    },
                    "required": ["people", "inside"],
                }
            },
        },
    ),
)
QUESTIONS = ("How is the weather in Rome?", "Größe? 😀", '{[("')


def request(question: str, **fields: Any) -> ModelRequest:
    fields.setdefault("messages", (Message(role="user", content=question),))
    return ModelRequest(tools=TOOLS, max_tokens=120, **fields)


def call_of(chunks: list[Chunk]) -> tuple[str, Any]:
    """The name and the arguments of the only call. They keep to the tool's schema."""
    parts = [chunk for chunk in chunks if isinstance(chunk, ToolCallPart)]
    assert isinstance(chunks[-1], Finish)
    assert chunks[-1].reason == "tool_calls"
    [name] = [part.name for part in parts if part.name]
    arguments = json.loads("".join(part.arguments for part in parts))
    [tool] = [tool for tool in TOOLS if tool.name == name]
    jsonschema.validate(arguments, tool.parameters)
    return name, arguments


def test_every_call_is_of_a_tool_that_exists_with_arguments_by_its_schema() -> None:
    async def scenario(weights: Path) -> None:
        async with LlamaCppEngine(weights, slots=1, context=768, tools="schema") as engine:
            for number, question in enumerate(QUESTIONS):
                asked = request(question, tool_choice="required", temperature=1.2, seed=number)
                call_of(await collect(engine, asked))
            assert call_of(await collect(engine, request(QUESTIONS[0], tool_choice="book")))[0] == "book"
            either = await collect(engine, request("Say hello.", temperature=0.0))
            assert text_of(either) or call_of(either)
            assert "{" not in text_of(await collect(engine, request("Say hello.", tool_choice="none", temperature=0.0)))

    run_async(scenario(models.install("smollm2")), deadline=120)


def test_an_answer_to_results_follows_and_words_are_words() -> None:
    async def scenario(weights: Path) -> None:
        call = ToolRequest(call_id="c1", name="weather", arguments='{"city": "Rome", "unit": "celsius"}')
        messages = (
            Message(role="user", content=QUESTIONS[0]),
            Message(role="assistant", tool_calls=(call,)),
            Message(role="tool", content="Sunny, 31 degrees", call_id="c1"),
        )
        async with LlamaCppEngine(weights, slots=1, context=768, tools="schema") as engine:
            chunks = await collect(engine, request("", messages=messages, tool_choice="none", temperature=0.0))
            assert "31" in text_of(chunks) or "sunny" in text_of(chunks).lower()

    run_async(scenario(models.install("smollm2")), deadline=120)
