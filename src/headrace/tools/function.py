"""A Python function as a tool.

    @tool(effect="none", timeout=5)
    def population(city: Annotated[str, "its English name"], year: int = 2025) -> int:
        \"\"\"How many people live in a city.\"\"\"

The type hints make the schema, the docstring the description. An async function runs on the loop, a sync one in a
thread, with `cpu=True` in a process. A parameter annotated `ToolContext` is filled in and not shown to the model.
"""

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

import msgspec

from headrace.errors import ConfigError, InvalidArguments
from headrace.messages import Effect, ToolSpec
from headrace.tools.arguments import parse_arguments
from headrace.tools.context import CallContext
from headrace.tools.port import ToolContext
from headrace.tools.processes import require_importable, run_in_process
from headrace.tools.schema import Signature, read_signature
from headrace.tools.threads import run_in_thread

GRACE = 0.05
"""Seconds a cancelled sync tool has to notice, before it is abandoned: within the 100 ms of a cancel."""

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class FunctionTool:
    """A Tool (see `port.py`). Called like the function it was made of, it is that function."""

    __name__: str

    def __init__(self, function: Callable[..., Any], spec: ToolSpec, signature: Signature, *, cpu: bool) -> None:
        self.function = function
        self.spec = spec
        self._signature = signature
        self._cpu = cpu
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.spec.name}>"

    def validate(self, arguments: str) -> dict[str, Any]:
        values = self._convert(parse_arguments(arguments))
        filled: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(values))
        return filled

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        values = self._convert(dict(arguments))
        keywords = {name: getattr(values, name) for name in values.__struct_fields__}
        if self._signature.context is not None:
            keywords[self._signature.context] = context
        if self._cpu:
            return await run_in_process(self.function, keywords)
        if inspect.iscoroutinefunction(self.function):
            return await self.function(**keywords)
        return await _in_thread(functools.partial(self.function, **keywords), context)

    def _convert(self, values: dict[str, Any]) -> msgspec.Struct:
        try:
            return msgspec.convert(values, self._signature.arguments)
        except msgspec.ValidationError as exc:
            raise InvalidArguments(f"{self.spec.name}: {_plain(str(exc))}.", hint=self._expected()) from exc

    def _expected(self) -> str:
        required = self.spec.parameters["required"]
        fields = [
            f"{name} ({_type_name(schema)}{'' if name in required else ', optional'})"
            for name, schema in self.spec.parameters["properties"].items()
        ]
        return f"Parameters: {', '.join(fields)}." if fields else "It takes no parameters: send {}."


@overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float = 30.0,
    effect: Effect = "once",
    cpu: bool = False,
    approval: bool = False,
    reads: Sequence[str] = (),
    writes: Sequence[str] = (),
) -> Callable[[Callable[..., Any]], FunctionTool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float = 30.0,
    effect: Effect = "once",
    cpu: bool = False,
    approval: bool = False,
    reads: Sequence[str] = (),
    writes: Sequence[str] = (),
) -> FunctionTool | Callable[[Callable[..., Any]], FunctionTool]:
    """Make a tool of a function; `ToolSpec` says what each setting means.

    Raises:
        ConfigError: the function cannot be a tool, or a setting makes no sense.
    """

    def make(function: Callable[..., Any]) -> FunctionTool:
        signature = read_signature(function)
        spec = ToolSpec(
            name=_checked_name(name or function.__name__),
            description=description or signature.description,
            parameters=signature.schema,
            timeout=_checked_timeout(timeout),
            effect=_checked_effect(effect),
            approval=approval,
            reads=tuple(reads),
            writes=tuple(writes),
        )
        if cpu:
            _check_cpu(function, signature)
        return FunctionTool(function, spec, signature, cpu=cpu)

    return make if function is None else make(function)


async def _in_thread(function: Callable[[], Any], context: ToolContext) -> Any:
    if not isinstance(context, CallContext):
        return await run_in_thread(function)
    return await run_in_thread(
        function, grace=GRACE, on_cancel=context.cancel_nowait, on_abandon=context.abandon_nowait
    )


def _plain(message: str) -> str:
    """msgspec's message in the model's words."""
    return (
        message.replace("Object contains unknown field", "there is no parameter")
        .replace("Object missing required field", "the required parameter is missing:")
        .replace("`$.", "`")
    )


def _type_name(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        return " or ".join(_type_name(option) for option in schema["anyOf"])
    return str(schema.get("type", "any"))


def _checked_name(name: str) -> str:
    if _NAME.fullmatch(name):
        return name
    raise ConfigError(
        f"{name!r} cannot be a tool's name.", hint="Use 1 to 64 letters, digits, _ and -; pass name=… to @tool."
    )


def _checked_timeout(seconds: float) -> float:
    if seconds > 0:
        return float(seconds)
    raise ConfigError(f"A tool's timeout of {seconds} s leaves it no time.", hint="Give seconds above 0.")


def _checked_effect(effect: Effect) -> Effect:
    if effect in ("none", "idempotent", "once"):
        return effect
    raise ConfigError(f"{effect!r} is not an effect.", hint="Use none, idempotent or once.")


def _check_cpu(function: Callable[..., Any], signature: Signature) -> None:
    if inspect.iscoroutinefunction(function):
        raise ConfigError(
            f"The tool {function.__name__} is async, so it cannot be cpu=True.",
            hint="Use `def`, or leave out cpu=True.",
        )
    if signature.context is not None:
        raise ConfigError(
            f"The tool {function.__name__} wants a ToolContext, which cannot follow it into another process.",
            hint="Leave out the parameter, or cpu=True.",
        )
    require_importable(function)
