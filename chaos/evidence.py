"""What a campaign collects, as plain values. `verdict.py` judges it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from chaos.plan import RunPlan
from chaos.process import Role
from chaos.system import Final, Seen

Kind = Literal["kill", "pause", "leave", "reload"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blow:
    """Something done to a process. From `at` to `until` (Unix time in seconds) it was gone, frozen or not yet back."""

    kind: Kind
    role: Role
    target: str
    pid: int
    at: float
    until: float

    def __str__(self) -> str:
        return f"{self.at:.3f} to {self.until:.3f}: {self.kind} {self.target} ({self.pid})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """What one client was shown of a run. `error` says why it gave up, None if it came to an end by itself."""

    client: str
    seen: Sequence[Seen]
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvidence:
    """`final` is None when the system could not say what became of the run."""

    run_id: str
    plan: RunPlan
    followed: Sequence[Followed]
    final: Final | None
