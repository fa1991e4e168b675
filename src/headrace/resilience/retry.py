"""How often to try again, and how long to wait before: a decision, without waiting."""

import msgspec


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """`attempts` counts the first one. Waits grow from `first` by `factor` up to `longest` seconds. Who is asked to
    wait longer than `patience` gives up."""

    attempts: int = 3
    first: float = 0.25
    factor: float = 2.0
    longest: float = 8.0
    patience: float = 30.0

    def wait(self, failed: int, *, dice: float, asked: float | None = None) -> float | None:
        """Seconds before the next attempt when `failed` have failed; None when there shall be none.

        `dice` (0 to 1) spreads those who failed together over half of the wait; `asked` is what the other side asked
        for (Retry-After), never undercut.
        """
        if failed >= self.attempts or (asked or 0.0) > self.patience:
            return None
        full = min(self.longest, self.first * self.factor ** (failed - 1))
        return max(full * (0.5 + dice / 2), asked or 0.0)
