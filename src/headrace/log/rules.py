"""Who may create and who may append, as plain functions of what is known. Nothing here waits or changes a run."""

import re
from collections.abc import Sequence
from typing import TypeAlias

from headrace.errors import (
    IdempotencyConflict,
    InvalidRequest,
    LogError,
    LogUnavailable,
    RequestError,
    RunEnded,
    SeqConflict,
    StaleFence,
)
from headrace.events import REQUESTS, TERMINALS, Event
from headrace.log.live import LiveRun
from headrace.log.ports import Created, NewRun

Name: TypeAlias = tuple[str, ...]
"""What a run is known by: (run_id,) and (tenant, key)."""

_RUN_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}", re.ASCII)


def check_run_id(run_id: str) -> None:
    """Raises InvalidRequest."""
    if not _RUN_ID.fullmatch(run_id):
        raise InvalidRequest(f"{run_id[:80]!r} is no run id", hint="Letters, digits and _ . : - only, up to 128.")


def names_of(run: NewRun) -> list[Name]:
    by_id: Name = (run.run_id,)
    return [by_id] if run.key is None else [by_id, (run.tenant, run.key)]


def created_before(known: NewRun, run: NewRun) -> Created:
    if known.tenant == run.tenant and known.fingerprint == run.fingerprint:
        return Created(run_id=known.run_id, new=False)
    raise IdempotencyConflict(
        f"{'this idempotency key' if run.key else f'run id {run.run_id}'} was used with another request",
        hint="Use a new key for a new request; repeat the same body for the same key.",
    )


def refuse(run: LiveRun, events: Sequence[Event], expected_seq: int | None, fence: int | None) -> None:
    """Raise what `RunLog.append` promises to raise."""
    if run.ending:
        raise refusal(run, run.fence)
    if fence is not None and fence != run.fence:
        raise refusal(run, fence)
    if expected_seq is not None and expected_seq != run.last:
        raise seq_conflict(run.id, run.last, expected_seq)
    refuse_events(run.id, events, fence)


def refuse_events(run_id: str, events: Sequence[Event], fence: int | None) -> None:
    """Raise what is wrong with an append whatever the run looks like."""
    if fence is None and not all(isinstance(event, REQUESTS) for event in events):
        raise StaleFence(
            f"only client requests are appended to run {run_id} without a fence",
            hint="Claim the run and append with `fence=claim.fence`, or through `writer(claim)`.",
        )
    if any(isinstance(event, TERMINALS) for event in events[:-1]):
        raise RunEnded(f"nothing can follow the terminal record of run {run_id}", hint="Append it last.")


def seq_conflict(run_id: str, head: int, expected: int) -> SeqConflict:
    return SeqConflict(f"run {run_id} is at {head}, not at {expected}", hint="Read again, then decide.")


def stale_fence(run_id: str, fence: int, held: int) -> StaleFence:
    return StaleFence(
        f"run {run_id} belongs to fence {fence}, this writer holds {held}",
        hint="Another worker has claimed the run: stop working on it.",
    )


def run_ended(run_id: str) -> RunEnded:
    return RunEnded(f"run {run_id} has ended", hint="Nothing can be appended after the terminal record.")


def refusal(run: LiveRun, fence: int) -> LogError | RequestError:
    """Why the holder of `fence` may not write to this run any more."""
    if run.ending:
        return run_ended(run.id)
    if run.fence != fence:
        return stale_fence(run.id, run.fence, fence)
    return LogUnavailable(
        f"an earlier record of run {run.id} could not be stored, and nothing after it was",
        hint="End the run with `append(run_id, [RunErrored(...)], fence=...)`, or take a new writer.",
    )
