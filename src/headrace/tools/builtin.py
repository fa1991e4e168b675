"""Tools that come with the house: what time it is, and arithmetic that can be trusted."""

import ast
import math
import operator
from collections.abc import Callable
from datetime import datetime
from typing import Annotated
from zoneinfo import ZoneInfo

from headrace.errors import InvalidArguments
from headrace.tools.function import tool

Number = int | float

MAX_LENGTH = 500
MAX_DIGITS = 1000
"""Of any intermediate result: nothing an expression says can take long or fill the memory."""


@tool(effect="none", timeout=5)
def clock(zone: Annotated[str, "IANA time zone, such as Europe/Berlin or UTC"] = "UTC") -> dict[str, str]:
    """The current date and time in a time zone."""
    now = datetime.now(_zone(zone))
    return {"time": now.isoformat(timespec="seconds"), "zone": zone, "weekday": now.strftime("%A")}


@tool(effect="none", timeout=5)
def calculator(
    expression: Annotated[str, "such as (3 + 4) * 2 ** 10, sqrt(2), 17 % 5, pi * 2"],
) -> Number | str:
    """Compute an arithmetic expression: + - * / // % **, brackets, sqrt, sin, log, round, min, max, pi and the like."""
    value = calculate(expression)
    if isinstance(value, float):
        return float(f"{value:.15g}")  # 0.3, not 0.30000000000000004
    return value if abs(value) < 2**53 else str(value)  # as a number, JavaScript would round it


def calculate(expression: str) -> Number:
    """The value of an arithmetic expression.

    Raises:
        InvalidArguments: it is not one, has no value, or its value is too large.
    """
    if len(expression) > MAX_LENGTH:
        raise _wrong(f"The expression is longer than {MAX_LENGTH} characters")
    try:
        tree = ast.parse(expression.strip().replace("^", "**").replace("×", "*").replace("÷", "/"), mode="eval")
        return _checked(_value(tree.body))
    except SyntaxError as exc:
        raise _wrong(f"{expression!r} is not an arithmetic expression ({exc.msg})") from exc
    except ZeroDivisionError as exc:
        raise _wrong(f"{expression!r} divides by zero") from exc
    except (OverflowError, RecursionError, MemoryError) as exc:
        raise _wrong(f"{expression!r} is too large to compute") from exc
    except (ValueError, TypeError) as exc:
        raise _wrong(f"{expression!r} has no value: {exc}") from exc


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as exc:
        raise InvalidArguments(
            f"There is no time zone {name!r}.", hint="Use an IANA name such as Europe/Berlin, Asia/Shanghai or UTC."
        ) from exc


_CONSTANTS = {"pi": math.pi, "e": math.e, "tau": math.tau}

_UNARY: dict[type[ast.unaryop], Callable[[Number], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}

_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}

_FUNCTIONS: dict[str, Callable[..., Number]] = {
    **{name: getattr(math, name) for name in ("sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "exp")},
    **{name: getattr(math, name) for name in ("log", "log2", "log10", "floor", "ceil", "degrees", "radians")},
    "abs": abs,
    "round": round,
    "min": min,
    "max": max,
}


def _value(node: ast.expr) -> Number:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return _checked(node.value)
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return _CONSTANTS[node.id]
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _UNARY[type(node.op)](_value(node.operand))
    if isinstance(node, ast.BinOp):
        return _checked(_operate(node.op, _value(node.left), _value(node.right)))
    if isinstance(node, ast.Call):
        return _checked(_apply(node))
    raise _wrong(f"{ast.unparse(node)[:60]!r} is not arithmetic")


def _operate(operation: ast.operator, left: Number, right: Number) -> Number:
    if isinstance(operation, ast.Pow):
        return _power(left, right)
    if type(operation) not in _BINARY:
        raise _wrong(f"The operator {type(operation).__name__} is not arithmetic")
    return _BINARY[type(operation)](left, right)


def _power(base: Number, exponent: Number) -> Number:
    """Refused before it is computed: 9 ** 9 ** 9 has 369 million digits."""
    if base in (0, 1, -1) or abs(exponent) <= 1:
        return _real(base**exponent)
    if abs(exponent) * abs(math.log10(abs(base))) > MAX_DIGITS:
        raise _wrong(f"A power with the exponent {exponent:g} is too large or too small")
    return _real(base**exponent)


def _real(value: complex) -> Number:
    if isinstance(value, int | float):
        return value
    raise _wrong("A root of a negative number is not a real number")


def _apply(call: ast.Call) -> Number:
    if not isinstance(call.func, ast.Name) or call.func.id not in _FUNCTIONS:
        raise _wrong(f"{ast.unparse(call.func)[:60]!r} is not a known function")
    if call.keywords:
        raise _wrong("Functions take numbers only")
    return _FUNCTIONS[call.func.id](*[_value(argument) for argument in call.args])


def _checked(value: Number) -> Number:
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        raise _wrong("The value is not a finite number")
    if abs(value) < 10**MAX_DIGITS:
        return value
    raise _wrong(f"A number has more than {MAX_DIGITS} digits")


def _wrong(message: str) -> InvalidArguments:
    return InvalidArguments(f"{message}.", hint=f"Known: + - * / // % **, brackets, {', '.join(_FUNCTIONS)}, pi, e.")
