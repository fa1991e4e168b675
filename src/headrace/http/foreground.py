"""A run that belongs to the connection that asked for it, as the protocols of others have it.

When the client goes, also before the first token, the run is asked to stop. An Idempotency-Key says that the client
will ask again, and whoever asks with it finds the run: that one goes on.
"""

import logging

from headrace.errors import HeadraceError, InvalidRequest
from headrace.http.dialect_stream import Fold, open_dialect_stream
from headrace.http.exchange import Exchange, Headers
from headrace.http.pulse import Pulse
from headrace.http.waiting import ends_before_the_client
from headrace.runs import Runs

logger = logging.getLogger("headrace.http")


class Foreground:
    """The two ways to answer a client that waits."""

    def __init__(self, runs: Runs, pulse: Pulse) -> None:
        self._runs = runs
        self._pulse = pulse

    async def stream(self, exchange: Exchange, run_id: str, fold: Fold) -> None:
        """Stream until the client has gone or has everything."""
        stream = await open_dialect_stream(
            exchange, self._runs.log, self._pulse, fold, run_id=run_id, headers=run_headers(run_id)
        )
        try:
            await exchange.gone()
        finally:
            stream.close()
        if not stream.ended:
            await self._cancel(exchange, run_id)

    async def ends_first(self, exchange: Exchange, run_id: str) -> bool:
        """Wait for the run. False if the client went before it: nobody is there to answer."""
        if await ends_before_the_client(exchange, self._runs.log, run_id):
            return True
        await self._cancel(exchange, run_id)
        return False

    async def _cancel(self, exchange: Exchange, run_id: str) -> None:
        if idempotency_key(exchange) is not None:
            return
        try:
            await self._runs.cancel(run_id, exchange.tenant, reason="the client has gone")
        except HeadraceError as error:
            logger.warning("run %s, whose client has gone, cannot be cancelled: %s", run_id, error.message)


def idempotency_key(exchange: Exchange) -> str | None:
    """Raises InvalidRequest."""
    key = exchange.header(b"idempotency-key")
    if key is not None and not 1 <= len(key) <= 255:
        raise InvalidRequest("The Idempotency-Key is empty or over 255 characters.")
    return key


def run_headers(run_id: str) -> Headers:
    return [(b"x-run-id", run_id.encode())]
