"""What is said to a model server over HTTP and what its answers mean, whoever holds the connection. No I/O."""

import email.utils
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from headrace.engine.refusals import engine_error
from headrace.errors import ConfigError, EngineError, EngineProtocol, EngineRejected, EngineTimeout, EngineUnavailable

_ANSWERS = ("text/event-stream", "application/json", "text/plain", "application/octet-stream")  # the last: no header
_REACH = "Is the model server running, and is the base URL right?"

ERROR_BYTES = 65536
"""Of an error page that are read."""


def with_path(url: str) -> str:
    """A base URL with `/v1` where it has no path. Raises ConfigError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{url!r} is no URL of a model server.", hint="It looks like http://127.0.0.1:8000/v1.")
    return url.rstrip("/") + ("" if parts.path.strip("/") else "/v1")


def headers_of(api_key: str | None, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Of every request. A compressing proxy would hold tokens back until its buffer is full."""
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", **(more or {})}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    return headers


def id_header(request_id: str | None) -> dict[str, str]:
    """Ids that cannot stand in a header go without."""
    return {"X-Request-Id": request_id} if request_id and request_id.isascii() and request_id.isprintable() else {}


def json_bytes(body: dict[str, Any]) -> bytes:
    """Raises EngineRejected."""
    try:
        return msgspec.json.encode(body)
    except (ValueError, TypeError) as exc:
        raise EngineRejected(f"The request cannot be written as JSON: {exc}", hint="Send valid Unicode text.") from exc


def is_answer(status: int, content_type: str) -> bool:
    return status == 200 and content_type in _ANSWERS


def refusal(
    body: bytes, *, url: str, status: int, content_type: str, reason: str | None, retry_after: str | None
) -> EngineError:
    """What a response means that is no answer."""
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


def shown(url: str) -> str:
    """Without the name and password that it may hold: errors reach clients and logs."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _json_or_text(body: str) -> object:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
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
