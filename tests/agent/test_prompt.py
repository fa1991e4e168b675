import os
import subprocess
import sys

import pytest

from headrace.agent.prompt import layout, read_options, request, sorted_specs
from headrace.engine.port import PARAMETERS, ModelRequest
from headrace.errors import InvalidRequest
from headrace.messages import Message, ToolSpec

TOOLS = (ToolSpec(name="b"), ToolSpec(name="a"))


def make(options: dict[str, object], *, first: bool = True, closing: bool = False) -> ModelRequest:
    return request(
        read_options(options),
        messages=(Message(role="user", content="Hi"),),
        tools=sorted_specs(TOOLS),
        model=None,
        session="t1",
        request_id="r1-1-1",
        first=first,
        closing=closing,
    )


def test_tools_are_sorted_whatever_order_they_came_in() -> None:
    assert sorted_specs(TOOLS) == sorted_specs(reversed(TOOLS))


def test_the_order_is_system_history_turns_tail() -> None:
    said = layout(
        system="S", history=[Message(role="user", content="h")], turns=[Message(role="user", content="t")], tail="T"
    )
    assert [(m.role, m.content) for m in said] == [("system", "S"), ("user", "h"), ("user", "t"), ("system", "T")]
    assert layout(system="", history=[], turns=[]) == ()


@pytest.mark.parametrize(
    ("response_format", "schema"),
    [
        ({"type": "json_schema", "json_schema": {"schema": {"type": "array"}}}, {"type": "array"}),
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "text"}, None),
    ],
)
def test_response_format_becomes_a_schema(response_format: dict[str, object], schema: object) -> None:
    assert make({"response_format": response_format}).json_schema == schema


def test_the_choice_of_a_tool_is_handed_on_and_closing_overrules_it() -> None:
    assert make({"tool_choice": "required"}).tool_choice == "required"
    assert make({}).tool_choice is None
    closing = make({"tool_choice": "required"}, closing=True)
    assert closing.tool_choice == "none"
    assert closing.tools == sorted_specs(TOOLS)


def test_all_that_can_be_said_about_sampling_reaches_the_engine() -> None:
    sampling: dict[str, object] = {
        "temperature": 0.5,
        "top_p": 0.5,
        "top_k": 40,
        "min_p": 0.1,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.1,
        "seed": 7,
        "stop": ["END"],
        "logit_bias": {"50256": -100},  # as JSON has it
    }
    assert set(sampling) == PARAMETERS
    made = make({**sampling, "regex": "a+"})
    assert {name: getattr(made, name) for name in PARAMETERS} == sampling | {
        "stop": ("END",),
        "logit_bias": {50256: -100.0},
    }
    assert made.regex == "a+"


@pytest.mark.parametrize(
    "options", [{"seed": "x"}, {"logit_bias": {"the": 1}}, {"stop": 3}, {"max_tokens": 1.5}, {"json_schema": []}]
)
def test_a_wrong_option_is_named(options: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_options(options)
    assert next(iter(options)) in caught.value.message


PRINTS_A_PROMPT = """
import msgspec
from headrace.agent.loop import Agent
from headrace.agent.prompt import layout, read_options, request, sorted_specs
from headrace.messages import Message
from headrace.tools.builtin import calculator, clock
from headrace.tools.function import tool

@tool
def find(words: list[str], kinds: set[str] = {"a", "b", "c"}, limit: int = 3) -> list[str]:
    "Find."
    return words

specs = sorted_specs(t.spec for t in {find, clock, calculator})
made = request(read_options({"temperature": 0.5}), messages=layout(system="S", history=[],
    turns=[Message(role="user", content="Hi")]), tools=specs, model=None, session="t", request_id="r")
print(msgspec.json.encode(made).decode())
"""


def test_a_prompt_is_the_same_bytes_in_every_process() -> None:
    def of(seed: str) -> str:
        ran = subprocess.run(
            [sys.executable, "-c", PRINTS_A_PROMPT],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        return ran.stdout

    first, second, third = of("1"), of("2"), of("3")
    assert first == second == third
    assert '"find"' in first
