"""Errors as RFC 9457 problem+json: a stable `code`, what happened, what to do."""

import msgspec

from headrace.errors import HeadraceError

STATUS: dict[str, int] = {
    "invalid_request": 400,
    "invalid_cursor": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "unknown_agent": 404,
    "unknown_run": 404,
    "unknown_thread": 404,
    "unknown_input": 404,
    "unknown_replica": 404,
    "not_found": 404,
    "method_not_allowed": 405,
    "input_conflict": 409,
    "run_ended": 409,
    "seq_conflict": 409,
    "no_replicas": 409,
    "replica_conflict": 409,
    "payload_too_large": 413,
    "idempotency_conflict": 422,
    "draining": 503,
    "log_unavailable": 503,
    "engine_unavailable": 503,
    "engine_overloaded": 503,
}
"""HTTP status by error code; anything else is a 500."""

RETRY_AFTER_S = 1
"""What a 503 tells clients to wait, in seconds, before they ask again."""


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    type: str
    title: str
    status: int
    code: str
    detail: str
    retryable: bool
    hint: str | None = None


def status_of(error: HeadraceError) -> int:
    return STATUS.get(error.code, 500)


def problem(error: HeadraceError) -> Problem:
    return Problem(
        type=f"urn:headrace:problem:{error.code}",
        title=error.code.replace("_", " ").capitalize(),
        status=status_of(error),
        code=error.code,
        detail=error.message,
        retryable=error.retryable,
        hint=error.hint,
    )
