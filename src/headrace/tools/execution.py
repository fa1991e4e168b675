"""Runs one tool call to exactly one outcome.

Whatever a tool does (raise, hang, answer with something that is not JSON, ignore its cancellation) ends as an outcome
that the model can read. The traceback goes to the server's log and never further.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from headrace.errors import ToolCancelled, ToolError, ToolFailed, ToolTimeout
from headrace.events import ToolFault
from headrace.messages import ToolSpec
from headrace.tools.context import CallContext
from headrace.tools.port import Tool

MAX_RESULT_BYTES = 100_000
"""Of a result's JSON. A longer text is cut and says so; anything else is refused."""

_MAX_MESSAGE = 2000
_json = msgspec.json.Encoder()
_log = logging.getLogger("headrace.tools")


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """`result` is a JSON value, or `error` says why there is none. `ms` is how long it took."""

    result: Any = None
    error: ToolFault | None = None
    ms: float = 0.0


def fault(error: ToolError) -> ToolFault:
    """A tool's error as it is recorded."""
    return ToolFault(code=error.code, message=_printable(error.message), hint=error.hint)


def seconds_for(spec: ToolSpec, left: float | None) -> float:
    """How long a call may take when the run has `left` seconds (None for no limit).

    A tenth of what is left, at most five seconds, is kept for the model's last answer.
    """
    if left is None:
        return spec.timeout
    return min(spec.timeout, left - min(5.0, left / 10))


async def execute(
    tool: Tool,
    arguments: Mapping[str, Any],
    *,
    run_id: str,
    call_id: str,
    left: float | None = None,
    show: Callable[[Any], None],
    settle: Callable[[Outcome], None],
    stopping: Callable[[], bool] = lambda: False,
    max_result_bytes: int = MAX_RESULT_BYTES,
) -> None:
    """Run a call; `settle` gets its outcome, once, also when the caller is cancelled, which is then let through.

    `left` is what the run has left in seconds; a call without time is not started. `show` gets each progress;
    `stopping` is what the tool sees as `cancelled`.
    """
    seconds = seconds_for(tool.spec, left)
    if seconds <= 0:
        late = ToolTimeout("The run's deadline is too near: the call was not started.", hint="Answer without it.")
        settle(Outcome(error=fault(late)))
        return
    context = CallContext(run_id=run_id, call_id=call_id, seconds=seconds, show=show, stopping=stopping)
    began = time.monotonic()
    cancelled: asyncio.CancelledError | None = None
    try:
        result, error = await _attempt(tool, arguments, context, seconds, max_result_bytes), None
    except ToolError as exc:
        result, error = None, exc
    except asyncio.CancelledError as exc:
        cancelled, result, error = exc, None, ToolCancelled("The run was cancelled." + _still_running(context))
    context.close_nowait()
    ms = (time.monotonic() - began) * 1000
    settle(Outcome(result=result, error=fault(error) if error else None, ms=round(ms, 3)))
    if cancelled is not None:
        raise cancelled


async def _attempt(
    tool: Tool, arguments: Mapping[str, Any], context: CallContext, seconds: float, max_result_bytes: int
) -> Any:
    """The result as JSON. Raises ToolError for whatever goes wrong, CancelledError when the caller is cancelled."""
    scope = asyncio.timeout(seconds)
    try:
        async with scope:
            result = await tool.call(arguments, context)
    except TimeoutError as exc:
        if not scope.expired():
            raise _failed(tool, exc) from exc
        said = f"{tool.spec.name} did not finish within {seconds:.3g} s." + _still_running(context)
        raise ToolTimeout(said, hint=_after_failure(tool.spec)) from exc
    except asyncio.CancelledError as exc:
        if _being_cancelled():
            raise
        raise ToolCancelled(f"{tool.spec.name} cancelled itself.", hint=_after_failure(tool.spec)) from exc
    except ToolError:
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as exc:  # a tool that calls sys.exit(), or raises what nobody catches, has failed
        raise _failed(tool, exc) from exc
    return _bounded(tool.spec, result, max_result_bytes)


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _failed(tool: Tool, exc: BaseException) -> ToolFailed:
    _log.warning("tool %s failed", tool.spec.name, exc_info=exc)
    text = str(exc)
    said = f"{type(exc).__name__}: {text}" if text else type(exc).__name__
    return ToolFailed(f"{tool.spec.name} failed: {said}", hint=_after_failure(tool.spec))


def _after_failure(spec: ToolSpec) -> str | None:
    return "It may have taken effect: check before calling it again." if spec.effect == "once" else None


def _still_running(context: CallContext) -> str:
    return " It ignored its cancellation and was abandoned: it may still be running." if context.abandoned else ""


def _bounded(spec: ToolSpec, result: Any, max_bytes: int) -> Any:
    try:
        encoded = _json.encode(result)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as exc:
        raise ToolFailed(
            f"{spec.name} returned a value of type {type(result).__name__} that JSON cannot carry: {exc}",
            hint=_after_failure(spec),
        ) from exc
    if len(encoded) <= max_bytes:
        return msgspec.json.decode(encoded)
    if isinstance(result, str):
        return _cut(result, max_bytes)
    raise ToolFailed(
        f"{spec.name} returned {len(encoded)} bytes, over the limit of {max_bytes}.", hint="Ask for less of it."
    )


def _cut(text: str, max_bytes: int) -> str:
    kept = text.encode()[:max_bytes].decode("utf-8", "ignore")
    return f"{kept}\n[Cut: the first {len(kept)} of {len(text)} characters.]"


def _printable(message: str) -> str:
    """Bounded, and writable as UTF-8 whatever the exception said."""
    shown = message if len(message) <= _MAX_MESSAGE else message[:_MAX_MESSAGE] + " …"
    return shown.encode("utf-8", "backslashreplace").decode()
