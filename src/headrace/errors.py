"""Every error Headrace raises on purpose, in one tree.

    HeadraceError
    ├── RequestError          the caller's mistake: nothing was started
    │   ├── InvalidRequest        invalid_request
    │   ├── PayloadTooLarge       payload_too_large
    │   ├── Unauthorized          unauthorized
    │   ├── Forbidden             forbidden: this caller may not
    │   ├── UnknownAgent          unknown_agent
    │   ├── UnknownRun            unknown_run
    │   ├── UnknownThread         unknown_thread
    │   ├── UnknownInput          unknown_input
    │   ├── InvalidCursor         invalid_cursor
    │   ├── IdempotencyConflict   idempotency_conflict
    │   ├── InputConflict         input_conflict
    │   ├── RunEnded              run_ended
    │   ├── NoReplicas            no_replicas: there is one model server, or none
    │   ├── UnknownReplica        unknown_replica
    │   └── ReplicaConflict       replica_conflict: the last one in service, or told otherwise meanwhile
    ├── Draining              draining, retry elsewhere
    ├── LogError              the log's
    │   ├── StaleFence            stale_fence: another owner has the run
    │   ├── SeqConflict           seq_conflict: expected_seq was not the head
    │   ├── LogUnavailable        log_unavailable (disk full, I/O error), retry
    │   ├── LogCorrupt            log_corrupt
    │   ├── LogLost               log_lost: the store lost records that were durable, retry as a new run
    │   └── LogLocked             log_locked: another process owns the files
    ├── EngineError           the model server's
    │   ├── EngineUnavailable     engine_unavailable, retry
    │   ├── EngineOverloaded      engine_overloaded, retry
    │   ├── EngineTimeout         engine_timeout, retry
    │   ├── EngineDied            engine_died, retry: it broke in the middle of an answer
    │   ├── EngineProtocol        engine_protocol: it answered what nobody can read
    │   ├── EngineRejected        engine_rejected: it refused the request
    │   └── ContextOverflow       context_overflow: the prompt does not fit
    ├── ToolError             becomes a record that the model reads, never a crash
    │   ├── UnknownTool           unknown_tool
    │   ├── InvalidArguments      invalid_arguments
    │   ├── ToolTimeout           tool_timeout
    │   ├── ToolCancelled         tool_cancelled
    │   ├── ToolFailed            tool_failed
    │   └── UnknownOutcome        unknown_outcome: it may have happened; not run again
    ├── RunError              ends a run
    │   ├── DeadlineExceeded      deadline_exceeded
    │   ├── TurnLimit             turn_limit
    │   ├── RunInterrupted        run_interrupted: the server stopped and the agent cannot resume, retry
    │   ├── Poison                poison: the run has taken one worker after the other down
    │   └── AgentFailed           agent_failed: a bug in the agent
    ├── ClientError           what a client of ours meets on its way to the server
    │   ├── ServerUnreachable     server_unreachable, retry: no answer within the client's patience
    │   └── ProtocolBroken        protocol_broken: it answered what this protocol does not allow
    └── ConfigError           config_error: the command line or the configuration

A message says what happened, a hint what to do. `code` is stable and travels on the wire; `retryable`
says whether the same request may succeed later without a change.
"""

from typing import ClassVar


class HeadraceError(Exception):
    """Base of the tree. `hint` tells the reader what to do about it."""

    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class RequestError(HeadraceError):
    code = "invalid_request"


class InvalidRequest(RequestError):
    """`field` names the one place that is wrong, if it is one: `messages[0].content`."""

    code = "invalid_request"

    def __init__(self, message: str, *, hint: str | None = None, field: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.field = field


class PayloadTooLarge(RequestError):
    code = "payload_too_large"


class Unauthorized(RequestError):
    code = "unauthorized"


class Forbidden(RequestError):
    code = "forbidden"


class UnknownAgent(RequestError):
    code = "unknown_agent"


class UnknownRun(RequestError):
    code = "unknown_run"


class UnknownThread(RequestError):
    code = "unknown_thread"


class UnknownInput(RequestError):
    code = "unknown_input"


class InvalidCursor(RequestError):
    code = "invalid_cursor"


class IdempotencyConflict(RequestError):
    code = "idempotency_conflict"


class InputConflict(RequestError):
    code = "input_conflict"


class RunEnded(RequestError):
    code = "run_ended"


class NoReplicas(RequestError):
    code = "no_replicas"


class UnknownReplica(RequestError):
    code = "unknown_replica"


class ReplicaConflict(RequestError):
    code = "replica_conflict"


class Draining(HeadraceError):
    code = "draining"
    retryable = True


class LogError(HeadraceError):
    code = "log_error"


class StaleFence(LogError):
    code = "stale_fence"


class SeqConflict(LogError):
    code = "seq_conflict"


class LogUnavailable(LogError):
    code = "log_unavailable"
    retryable = True


class LogCorrupt(LogError):
    code = "log_corrupt"


class LogLost(LogError):
    code = "log_lost"
    retryable = True


class LogLocked(LogError):
    code = "log_locked"


class EngineError(HeadraceError):
    code = "engine_error"


class EngineUnavailable(EngineError):
    code = "engine_unavailable"
    retryable = True


class EngineOverloaded(EngineError):
    """`retry_after` is in seconds where the engine said so."""

    code = "engine_overloaded"
    retryable = True

    def __init__(self, message: str, *, hint: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class EngineTimeout(EngineError):
    code = "engine_timeout"
    retryable = True


class EngineDied(EngineError):
    code = "engine_died"
    retryable = True


class EngineProtocol(EngineError):
    code = "engine_protocol"


class EngineRejected(EngineError):
    code = "engine_rejected"


class ContextOverflow(EngineError):
    code = "context_overflow"


class ToolError(HeadraceError):
    code = "tool_error"


class UnknownTool(ToolError):
    code = "unknown_tool"


class InvalidArguments(ToolError):
    code = "invalid_arguments"


class ToolTimeout(ToolError):
    code = "tool_timeout"


class ToolCancelled(ToolError):
    code = "tool_cancelled"


class ToolFailed(ToolError):
    code = "tool_failed"


class UnknownOutcome(ToolError):
    code = "unknown_outcome"


class RunError(HeadraceError):
    code = "run_error"


class DeadlineExceeded(RunError):
    code = "deadline_exceeded"


class TurnLimit(RunError):
    code = "turn_limit"


class RunInterrupted(RunError):
    code = "run_interrupted"
    retryable = True


class Poison(RunError):
    code = "poison"


class AgentFailed(RunError):
    code = "agent_failed"


class ClientError(HeadraceError):
    code = "client_error"


class ServerUnreachable(ClientError):
    code = "server_unreachable"
    retryable = True


class ProtocolBroken(ClientError):
    code = "protocol_broken"


class ConfigError(HeadraceError):
    code = "config_error"
