"""What may be asked of an engine is decided before anything is sent, and a refusal names the field."""

from typing import Any

import msgspec
import pytest

from headrace.engine.admission import require_supported
from headrace.engine.port import PARAMETERS, Capabilities, ModelRequest
from headrace.errors import EngineRejected
from headrace.messages import Message, ToolSpec

HELLO = ModelRequest(messages=(Message(role="user", content="Hello"),))
CLOCK = ToolSpec(name="clock")


def refusal(able: Capabilities, **asked: Any) -> EngineRejected:
    with pytest.raises(EngineRejected) as caught:
        require_supported(msgspec.structs.replace(HELLO, **asked), able, engine="small")
    return caught.value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0.0),
        ("top_p", 1.0),
        ("top_k", 5),
        ("min_p", 0.1),
        ("presence_penalty", 0.0),
        ("frequency_penalty", 1.0),
        ("repetition_penalty", 1.1),
        ("seed", 0),
        ("stop", ("x",)),
        ("logit_bias", {}),
        ("logprobs", 0),
        ("grammar", "root ::= x"),
        ("regex", "a"),
        ("json_schema", {}),
        ("tools", (CLOCK,)),
        ("continued", "Well"),
    ],
)
def test_whatever_an_engine_cannot_do_is_refused_by_the_name_of_the_field(field: str, value: Any) -> None:
    error = refusal(Capabilities(sampling=frozenset()), **{field: value})
    assert f"`{field}`" in error.message
    assert "small" in error.message
    assert error.hint


def test_an_engine_that_can_do_everything_refuses_nothing_of_it() -> None:
    able = Capabilities(
        tools=True, sampling=PARAMETERS, logprobs=True, regex=True, raw_prompt=True, continuation=True, thinking=True
    )
    request = msgspec.structs.replace(
        HELLO,
        temperature=0.5,
        top_k=4,
        repetition_penalty=1.1,
        logit_bias={3: -100.0},
        logprobs=2,
        regex="[a-z]+",
        tools=(CLOCK,),
        tool_choice="clock",
        continued="a",
    )
    require_supported(request, able, engine="large")


def test_a_refused_shape_names_those_that_are_possible() -> None:
    assert "`json_schema`" in (refusal(Capabilities(json_schema=True), regex="a").hint or "")


def test_two_shapes_are_one_too_many() -> None:
    able = Capabilities(grammar=True, json_schema=True, regex=True)
    assert "`regex` and `json_schema`" in refusal(able, regex="a", json_schema={}).message


@pytest.mark.parametrize(
    ("choice", "kind"), [("none", "none"), ("required", "required"), ("clock", "named"), (None, "auto")]
)
def test_a_tool_choice_that_an_engine_does_not_read_is_refused(choice: str | None, kind: str) -> None:
    able = Capabilities(tools=True, tool_choice=frozenset())
    assert f"`tool_choice` {kind}" in refusal(able, tools=(CLOCK,), tool_choice=choice).message


@pytest.mark.parametrize(
    "nonsense",
    [
        {"max_tokens": 0},
        {"stop": ("ok", "")},
        {"logprobs": -1},
        {"tools": (CLOCK,), "tool_choice": "watch"},
        {"continued": ""},
    ],
)
def test_nonsense_is_refused_by_every_engine(nonsense: dict[str, Any]) -> None:
    able = Capabilities(tools=True, sampling=PARAMETERS, logprobs=True, continuation=True)
    refusal(able, **nonsense)
