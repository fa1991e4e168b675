"""How long runs are kept, and in which form."""

import msgspec

DAY_S = 86_400.0


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """What is forgotten and when. A live run is never trimmed by age; a folded state covers whatever was trimmed.

    `max_records`: records kept per run, live ones too; older ones go from the front (`Head.first` moves).
    `frames_age_s`: seconds after the end until the records go, all but the terminal one.
    `state_age_s`: seconds after the end until the run is unknown.
    `seal_after_s`: seconds after the end until a run leaves memory and the journal for the archive.
    `ended_bytes`: bytes of ended runs held in memory before the oldest are sealed (or dropped) early.
    """

    max_records: int = 100_000
    frames_age_s: float = DAY_S
    state_age_s: float = 30 * DAY_S
    seal_after_s: float = 30.0
    ended_bytes: int = 64 * 1024 * 1024

    @property
    def trim_at(self) -> int:
        """Records above which a run is cut back to `max_records`: in steps, so that it costs nothing per record."""
        return self.max_records + self.max_records // 8
