"""What it means when there is no answer, whoever holds the connection. No I/O."""

import email.utils
import time
from urllib.parse import urlsplit

import msgspec

from headrace.engine.refusals import engine_error
from headrace.errors import EngineDied, EngineError, EngineProtocol, EngineTimeout, EngineUnavailable

_ANSWERS = ("text/event-stream", "application/json", "text/plain", "application/octet-stream")  # the last: no header
_REACH = "Is the model server running, and is the base URL right?"

ERROR_BYTES = 65536
"""So much of an error page is read."""


def is_answer(status: int, content_type: str) -> bool:
    return status == 200 and content_type in _ANSWERS


def refusal(
    body: bytes, *, url: str, status: int, content_type: str, reason: str | None, retry_after: str | None
) -> EngineError:
    """What a response means that is no answer. `reason` stands beside the status, `retry_after` is the header."""
    if status < 400:
        return EngineProtocol(
            f"{shown(url)} answered {status} {content_type}, which is no model's answer.",
            hint="Check the base URL (it usually ends in /v1).",
        )
    said = _json_or_text(body.decode("utf-8", "replace")) or reason
    return engine_error(said, status=status, retry_after=_seconds(retry_after or ""))


def not_open() -> EngineUnavailable:
    return EngineUnavailable("The engine is not open.", hint="Enter it first: `async with engine:`.")


def not_connected(url: str, limit: float) -> EngineTimeout:
    return EngineTimeout(f"No connection to {shown(url)} within {limit:g} s (connect).", hint=_REACH)


def unreachable(url: str, exc: Exception) -> EngineUnavailable:
    return EngineUnavailable(f"The model server at {shown(url)} cannot be reached: {exc}", hint=_REACH)


def broken(exc: Exception | None) -> EngineDied:
    return EngineDied(f"The connection to the model server broke: {exc}", hint="Look at the model server's own log.")


def shown(url: str) -> str:
    """Without the name and password that it may hold: errors reach clients and logs."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _json_or_text(body: str) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return body


def _seconds(retry_after: str) -> float | None:
    """The header has seconds or a date."""
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time())
    except ValueError:
        return None
