"""What a model server's error means to us: by its status or code, its type and its words."""

import re
from typing import Any

from headrace.errors import (
    ContextOverflow,
    EngineDied,
    EngineError,
    EngineOverloaded,
    EngineRejected,
    EngineTimeout,
    EngineUnavailable,
)

_OVERFLOW = re.compile(
    r"context[ _-]?(length|size|window)|maximum context|exceed_context|prompt is too long|too many (input )?tokens"
    r"|too large to process|input (is|length).{0,40}(too long|exceed)|context limit|maximum model length"
    r"|token count.{0,40}exceeds"
    r"|`inputs`.{0,40}must (be|have)|exceeds? (the )?max_(seq_len|num_tokens|input_len)",
    re.IGNORECASE,
)
_OVERLOADED = re.compile(r"rate.?limit|overload|too many requests|queue is full|no slot available", re.IGNORECASE)
_CALLER = re.compile(r"invalid_request|bad.?request|invalid.?param|not_supported|unsupported|validation", re.IGNORECASE)
_CODES_OF_WORDS = {
    "invalid_api_key": 401,
    "authentication_error": 401,
    "permission_error": 403,
    "model_not_found": 404,
    "not_found_error": 404,
    "insufficient_quota": 402,
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "billing_error": 402,
    "overloaded_error": 529,
    "timeout_error": 408,
    "timeout": 408,
}


def engine_error(
    body: object, *, status: int | None = None, begun: bool = False, retry_after: float | None = None
) -> EngineError:
    """The error for what a server sent instead of an answer, or in the middle of it (`begun`).

    `body` is the decoded JSON, the text, or an error object; `status` is the HTTP status where there is one.
    """
    error = _error_object(body)
    message = _message(error)
    words = f"{error.get('type', '')} {error.get('code', '')} {message}"
    status = _status(error, status)
    if status != 429 and _OVERFLOW.search(words):
        return ContextOverflow(message, hint="Shorten the conversation, or load the model with a larger context.")
    if status in (429, 529) or (status in (None, 503) and _OVERLOADED.search(words)):
        return EngineOverloaded(message, hint="Try again later.", retry_after=retry_after)
    if status in (408, 504):
        return EngineTimeout(message, hint="The model server itself gave up waiting.")
    if status is not None and 400 <= status < 500:
        return EngineRejected(message, hint=_HINTS.get(status, "The model server refuses this request as it is."))
    if status is None and _CALLER.search(words):
        return EngineRejected(message, hint="The model server refuses this request as it is.")
    if begun:
        return EngineDied(message, hint="The model server broke off its answer.")
    return EngineUnavailable(message, hint="Look at the model server's own log.")


_HINTS = {
    401: "Check the API key of the engine.",
    403: "Check the API key of the engine and what it may use.",
    402: "The account of this API key has no credit left.",
    404: "Check the model's name and the base URL (it usually ends in /v1).",
}


def _error_object(body: object) -> dict[str, Any]:
    if isinstance(body, list) and len(body) == 1:
        body = body[0]  # Gemini's
    if isinstance(body, dict):
        inner = body.get("error", body)
        return inner if isinstance(inner, dict) else {"message": str(inner)}
    return {"message": str(body)}


def _message(error: dict[str, Any]) -> str:
    said = error.get("message") or error.get("detail") or error.get("error") or error
    text = said if isinstance(said, str) else str(said)
    return f"The model server says: {text.strip()[:500] or 'nothing'}"


def _status(error: dict[str, Any], status: int | None) -> int | None:
    said = [_as_status(error.get("code")), _as_status(error.get("type"))]
    if 402 in said:
        return 402  # servers wrap it in a 429, but waiting does not help
    return status or next(filter(None, said), None)


def _as_status(value: object) -> int | None:
    if isinstance(value, str):
        value = int(value) if value.isdecimal() else _CODES_OF_WORDS.get(value)
    return value if isinstance(value, int) and 400 <= value < 600 else None
