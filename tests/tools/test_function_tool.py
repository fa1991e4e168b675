import enum
import threading
from typing import Annotated, Any, Literal

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import run_async
from headrace.errors import ConfigError, InvalidArguments
from headrace.tools.context import CallContext
from headrace.tools.function import FunctionTool, tool
from headrace.tools.port import ToolContext


class Place(msgspec.Struct):
    lat: float
    lon: float = 0.0


class Tree(msgspec.Struct):
    name: str
    children: list["Tree"] = []


class Unit(enum.Enum):
    METRIC = "metric"
    IMPERIAL = "imperial"


@tool(effect="none", timeout=5)
def forecast(
    city: Annotated[str, "its English name"],
    context: ToolContext,
    days: int = 1,
    unit: Unit = Unit.METRIC,
    mode: Literal["short", "long"] = "short",
    near: Place | None = None,
    tags: list[str] = [],  # noqa: B006
) -> str:
    """What the weather
    will be.

    Not for the model.

    Args:
        days: How many
            days ahead.
        unit (Unit): Which units.
    """
    return f"{city} {days} {unit.value} {near.lat if near else None} {context.call_id}"


def call(of: FunctionTool, raw: str) -> Any:
    async def run() -> Any:
        context = CallContext(run_id="r1", call_id="c1", seconds=5, show=lambda data: None)
        return await of.call(of.validate(raw), context)

    return run_async(run())


def test_the_schema_comes_from_the_type_hints_and_the_words_from_the_docstring() -> None:
    spec = forecast.spec
    assert (spec.name, spec.description, spec.effect, spec.timeout) == (
        "forecast",
        "What the weather will be.",
        "none",
        5.0,
    )
    properties = spec.parameters["properties"]
    assert list(properties) == ["city", "days", "unit", "mode", "near", "tags"]
    assert properties["city"] == {"type": "string", "description": "its English name"}
    assert properties["days"] == {"type": "integer", "default": 1, "description": "How many days ahead."}
    assert properties["unit"]["enum"] == ["imperial", "metric"]
    assert properties["unit"]["description"] == "Which units."
    assert properties["mode"]["type"] == "string"
    assert properties["near"]["anyOf"][0]["properties"]["lat"] == {"type": "number"}
    assert spec.parameters["required"] == ["city"]
    assert "$defs" not in spec.parameters


def test_a_type_that_contains_itself_stays_a_reference() -> None:
    @tool
    def plant(tree: Tree) -> None: ...

    jsonschema.Draft202012Validator.check_schema(plant.spec.parameters)
    jsonschema.validate({"tree": {"name": "a", "children": [{"name": "b"}]}}, plant.spec.parameters)
    assert plant.validate('{"tree":{"name":"a","children":[{"name":"b"}]}}')


def test_sphinx_and_meta_descriptions_are_read() -> None:
    @tool
    def add(a: int, b: Annotated[int, msgspec.Meta(ge=0, description="the second")]) -> int:
        """Add.

        :param a: the first
            of two
        :param int b: overruled by the type
        """
        return a + b

    properties = add.spec.parameters["properties"]
    assert properties["a"]["description"] == "the first of two"
    assert properties["b"] == {"type": "integer", "minimum": 0, "description": "the second"}


def test_an_effect_is_once_unless_declared() -> None:
    @tool
    def pay(amount: int) -> None: ...

    assert pay.spec.effect == "once"


def test_defaults_are_filled_in_and_the_context_is_injected() -> None:
    assert forecast.validate('{"city":"Ulm"}') == {
        "city": "Ulm",
        "days": 1,
        "unit": "metric",
        "mode": "short",
        "near": None,
        "tags": [],
    }
    assert call(forecast, '{"city":"Ulm","near":{"lat":48}}') == "Ulm 1 metric 48.0 c1"


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ("", "missing: `city`"),
        ('{"city":3}', "got `int` - at `city`"),
        ('{"city":"Ulm","place":"x"}', "no parameter `place`"),
        ('{"city":"Ulm","near":{"lat":"x"}}', "`near.lat`"),
        ('{"city":"Ulm","mode":"wide"}', "'wide'"),
        ('{"city":"Ulm","context":{}}', "no parameter `context`"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_what_was_expected(raw: str, says: str) -> None:
    with pytest.raises(InvalidArguments) as caught:
        forecast.validate(raw)
    assert says in caught.value.message
    assert "days (integer, optional)" in (caught.value.hint or "")


@given(st.text() | st.binary().map(lambda raw: raw.decode("utf-8", "surrogateescape")))
def test_any_text_at_all_is_valid_arguments_or_a_clear_refusal(raw: str) -> None:
    try:
        validated = forecast.validate(raw)
    except InvalidArguments as refusal:
        said = refusal.message
    else:
        said = validated["city"]
    assert said.encode() or validated


def test_a_tool_is_still_the_function_it_was_made_of() -> None:
    @tool
    def double(n: int) -> int:
        """Twice."""
        return 2 * n

    assert double(4) == 8
    assert double.__name__ == "double"


def test_a_sync_tool_runs_in_a_thread_that_is_ours() -> None:
    @tool
    def where() -> str:
        return threading.current_thread().name

    assert call(where, "") == "headrace-tool"


def test_a_mutable_default_is_new_for_each_call() -> None:
    @tool
    def collect(into: list[int] = []) -> list[int]:  # noqa: B006
        into.append(1)
        return into

    assert call(collect, "{}") == call(collect, "{}") == [1]


class Opaque:
    pass


def test_what_a_model_could_not_fill_is_refused_when_the_tool_is_made() -> None:
    def opaque(thing: Opaque) -> None: ...
    def many(*things: int) -> None: ...
    def positional(thing: int, /) -> None: ...

    for function in (opaque, many, positional):
        with pytest.raises(ConfigError) as caught:
            tool(function)
        assert function.__name__ in caught.value.message
        assert caught.value.hint


def test_settings_that_make_no_sense_are_refused() -> None:
    def fine() -> None: ...

    with pytest.raises(ConfigError):
        tool(timeout=0)(fine)
    with pytest.raises(ConfigError):
        tool(name="no spaces")(fine)
    with pytest.raises(ConfigError):
        tool(effect="twice")(fine)  # type: ignore[call-overload]


def test_a_cpu_tool_must_be_a_sync_function_at_module_level_without_a_context() -> None:
    def inner() -> None: ...
    async def asynchronous() -> None: ...
    def curious(context: ToolContext) -> None: ...

    for function in (inner, asynchronous, curious):
        with pytest.raises(ConfigError):
            tool(cpu=True)(function)
