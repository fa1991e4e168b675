"""Our errors as OpenAI's clients know them: `{"error": {message, type, param, code}}` and an HTTP status.

Codes stay ours, so that a log line and an exception name the same thing, save the two that other people's code
looks for: `model_not_found` and `context_length_exceeded`.
"""

from typing import Any, Literal

import msgspec

from headrace.errors import HeadraceError, InvalidRequest
from headrace.events import RunErrored

ErrorType = Literal["invalid_request_error", "authentication_error", "rate_limit_error", "server_error"]

_KNOWN: dict[str, tuple[int, ErrorType]] = {
    "invalid_request": (400, "invalid_request_error"),
    "invalid_cursor": (400, "invalid_request_error"),
    "unauthorized": (401, "authentication_error"),
    "unknown_agent": (404, "invalid_request_error"),
    "unknown_run": (404, "invalid_request_error"),
    "unknown_thread": (404, "invalid_request_error"),
    "not_found": (404, "invalid_request_error"),
    "method_not_allowed": (405, "invalid_request_error"),
    "run_ended": (409, "invalid_request_error"),
    "input_conflict": (409, "invalid_request_error"),
    "payload_too_large": (413, "invalid_request_error"),
    "idempotency_conflict": (422, "invalid_request_error"),
    "engine_rejected": (400, "invalid_request_error"),
    "context_overflow": (400, "invalid_request_error"),
    "engine_overloaded": (429, "rate_limit_error"),
    "engine_died": (502, "server_error"),
    "engine_protocol": (502, "server_error"),
    "draining": (503, "server_error"),
    "log_unavailable": (503, "server_error"),
    "engine_unavailable": (503, "server_error"),
    "run_interrupted": (503, "server_error"),
    "engine_timeout": (504, "server_error"),
    "deadline_exceeded": (504, "server_error"),
}
"""Status and type by code; any other is a 500 `server_error`."""

_THEIR_CODES = {"unknown_agent": "model_not_found", "context_overflow": "context_length_exceeded"}


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """The schema requires all four, null or not."""

    message: str
    type: ErrorType
    param: str | None
    code: str


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that is an error. `retryable` becomes `x-should-retry`: the clients would else retry every 5xx."""

    status: int
    retryable: bool
    error: ErrorBody

    @property
    def body(self) -> dict[str, Any]:
        return {"error": msgspec.to_builtins(self.error)}


def failure(error: HeadraceError) -> Failure:
    param = error.field if isinstance(error, InvalidRequest) else "model" if error.code == "unknown_agent" else None
    return _failure(error.code, error.message, error.hint, retryable=error.retryable, param=param)


def run_failure(event: RunErrored) -> Failure:
    return _failure(event.code, event.message, event.hint, retryable=event.retryable)


def retracted_failure(reason: str) -> Failure:
    """A completion stream cannot take back what it has sent: it breaks, and the client may ask again."""
    message = f"The answer so far is void: {reason}"
    return _failure("text_retracted", message, "Ask again; the Responses API can go on.", retryable=True)


def _failure(code: str, message: str, hint: str | None, *, retryable: bool, param: str | None = None) -> Failure:
    status, kind = _KNOWN.get(code, (500, "server_error"))
    said = f"{message} {hint}" if hint else message
    body = ErrorBody(message=said, type=kind, param=param, code=_THEIR_CODES.get(code, code))
    return Failure(status=status, retryable=retryable, error=body)
