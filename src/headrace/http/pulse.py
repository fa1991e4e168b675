"""One timer for the heartbeats of all connections.

A sweep per second counts how long each connection has said nothing; whoever writes sets its count back to zero, so
the hot path reads no clock.
"""

import asyncio
from typing import Protocol

SWEEP_S = 1.0


class Beating(Protocol):
    """A connection with a heartbeat. `quiet` is the number of sweeps since it last wrote."""

    quiet: int

    def beat(self) -> None:
        """Write a heartbeat, between frames."""
        ...

    def go_away(self) -> None:
        """The server is leaving: tell the client to come back, and end."""
        ...


class Pulse:
    """`interval` is the longest silence of a connection, in seconds."""

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self._connections: set[Beating] = set()

    def __len__(self) -> int:
        return len(self._connections)

    def add(self, connection: Beating) -> None:
        self._connections.add(connection)

    def discard(self, connection: Beating) -> None:
        self._connections.discard(connection)

    async def run(self) -> None:
        """Beat until cancelled."""
        period = min(SWEEP_S, self.interval / 2)
        limit = self.interval / period - 1
        while True:
            await asyncio.sleep(period)
            for connection in tuple(self._connections):
                connection.quiet += 1
                if connection.quiet >= limit:
                    connection.quiet = 0
                    connection.beat()

    def go_away(self) -> None:
        """End every connection so that its client reconnects."""
        for connection in tuple(self._connections):
            connection.go_away()
