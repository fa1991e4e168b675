"""What a worker may believe about leases, from the times at which it renewed its own. No I/O and no clock in here.

A lease that has run out says that its holder is dead only if the holder could have renewed it. While the server was
away nobody could; so whoever noticed that it was away leaves the others a whole lease to come back first.
"""

import msgspec

RENEWALS_PER_LEASE = 3
"""Two may fail in a row before a lease is lost."""

LATE = 1.5
"""Intervals without a renewal after which the server may have been away: while it was, others could not renew either.
Their last renewal may be an interval older than ours, and they need a third of one to come back; so less than 5/3."""


class Contact(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's contact with the server: `renewed` gives the next one.

    Times are seconds of the worker's monotonic clock; `server_ms` is the server's, in ms, at the last renewal.
    """

    lease_s: float
    asked: float
    unbroken_since: float
    server_ms: int

    @classmethod
    def first(cls, lease_s: float, asked: float, server_ms: int) -> "Contact":
        """A new worker has not seen the server away, and believes what it finds."""
        return cls(lease_s=lease_s, asked=asked, unbroken_since=asked - lease_s, server_ms=server_ms)

    def renewed(self, asked: float, server_ms: int) -> "Contact":
        """After a renewal that was asked for at `asked` and answered."""
        since = asked if self.is_late(asked) else self.unbroken_since
        return Contact(lease_s=self.lease_s, asked=asked, unbroken_since=since, server_ms=server_ms)

    def is_fresh(self, now: float) -> bool:
        """Whether this worker's own leases cannot have run out."""
        return now - self.asked < self.lease_s

    def is_late(self, now: float) -> bool:
        """Whether a renewal should have been answered by now, and was not."""
        return now - self.asked > LATE * self.lease_s / RENEWALS_PER_LEASE

    def knows_the_dead(self, now: float) -> bool:
        """Whether a lease that has run out belongs to a worker that is gone."""
        return not self.is_late(now) and now - self.unbroken_since >= self.lease_s

    def obey_until_ms(self, now: float) -> int:
        """The server's time after which a command sent at `now` has been held up, and no longer holds."""
        return self.server_ms + round((now - self.asked + self.lease_s / RENEWALS_PER_LEASE) * 1000)
