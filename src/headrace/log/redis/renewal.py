"""The thread that keeps this worker's leases: a busy loop must not starve it, and a dead loop must lose its runs.

It renews all of them at once, three times a lease, over a connection of its own. It stops while the loop has not
answered for ten leases: nobody works on those runs any more, whatever this thread could say.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from headrace.log.redis.connection import BlockingRedis, connect_blocking
from headrace.log.redis.contact import RENEWALS_PER_LEASE, Contact
from headrace.log.redis.keys import Keys
from headrace.log.redis.lease_scripts import RENEW

logger = logging.getLogger("headrace.log")

DEAD_AFTER_LEASES = 10
AT_ONCE = 500
"""Runs that one script renews: two milliseconds in which the server serves nobody else."""


class Renewal:
    """Renews what is in `held`, which the loop's thread alone changes. `lost` is called there with what others took."""

    def __init__(
        self,
        url: str,
        keys: Keys,
        *,
        worker: str,
        lease_s: float,
        held: set[str],
        lost: Callable[[Sequence[str]], None],
    ) -> None:
        self._url = url
        self._keys = [keys.leases, keys.holders, keys.taken]
        self._worker = worker
        self._lease_s = lease_s
        self._held = held
        self._lost = lost
        self._renewed: Contact | None = None  # as this thread knows it
        self._contact: Contact | None = None  # as the loop may know it
        self._redis: BlockingRedis | None = None
        self._failing = False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leases", daemon=True)

    @property
    def contact(self) -> Contact:
        """How far the leases can be relied on. There is one from `start` on."""
        assert self._contact is not None
        return self._contact

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Renew once, in the caller's thread, and from then on in our own. Waits for the server.

        Raises:
            redis.RedisError: it does not answer.
        """
        self._loop = loop
        self._silence = _Silence(loop, self._lease_s)
        self._renew()
        self._thread.start()

    def end(self) -> None:
        """Stop renewing. Waits for the thread, half a lease at most."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._redis is not None:
            self._redis.close()

    def _run(self) -> None:
        pause = interval = self._lease_s / RENEWALS_PER_LEASE
        while not self._ending.wait(pause) and not self._loop.is_closed():
            pause = interval
            if self._silence.listen(time.monotonic()) > DEAD_AFTER_LEASES * self._lease_s:
                continue
            try:
                self._renew()
                self._say_whether_it_works(None)
            except Exception as exc:  # whatever it is: were this thread to end, all runs would be lost
                self._say_whether_it_works(exc)
                pause = interval / RENEWALS_PER_LEASE

    def _renew(self) -> None:
        asked = time.monotonic()
        runs = tuple(self._held.copy())  # one step, whatever the loop does meanwhile
        server_ms, lost, forgotten = self._ask(runs[:AT_ONCE])
        for at in range(AT_ONCE, len(runs), AT_ONCE):
            _, more_lost, more_forgotten = self._ask(runs[at : at + AT_ONCE])
            lost, forgotten = [*lost, *more_lost], [*forgotten, *more_forgotten]
        again = [run for run in forgotten if run in self._held]  # the others have ended since we asked
        for at in range(0, len(again), AT_ONCE):
            self._ask(again[at : at + AT_ONCE], take_up_again=True)
        before = self._renewed
        self._renewed = before.renewed(asked, server_ms) if before else Contact.first(self._lease_s, asked, server_ms)
        if self._contact is None:
            self._contact = self._renewed
        self._loop.call_soon_threadsafe(self._tell, self._renewed, lost)

    def _tell(self, renewed: Contact, lost: Sequence[str]) -> None:
        """On the loop's thread, where nobody may rely on leases again before the lost ones are known."""
        if lost:
            self._lost(lost)
        self._contact = renewed

    def _ask(self, runs: Iterable[str], *, take_up_again: bool = False) -> tuple[int, list[str], list[str]]:
        if self._redis is None:
            self._redis = connect_blocking(self._url, timeout_s=self._lease_s / 2)
            self._script = self._redis.register_script(RENEW)
        arguments: list[str | int] = [self._worker, round(self._lease_s * 1000), int(take_up_again), *runs]
        server_ms, lost, forgotten = self._script(keys=self._keys, args=arguments)
        return server_ms, lost, forgotten

    def _say_whether_it_works(self, error: Exception | None) -> None:
        if error is not None and not self._failing:
            logger.warning("leases cannot be renewed, trying on: %s", error)
        elif error is None and self._failing:
            logger.warning("leases are renewed again")
        self._failing = error is not None


class _Silence:
    """How long the loop has owed an answer. While the whole process stood still it owed none."""

    def __init__(self, loop: asyncio.AbstractEventLoop, lease_s: float) -> None:
        self._loop = loop
        self._lease_s = lease_s
        self._answered = True
        self._heard = time.monotonic()
        self._seconds = 0.0

    def listen(self, now: float) -> float:
        """Seconds of silence; asks the loop for the next answer."""
        self._seconds += min(now - self._heard, self._lease_s)
        self._heard = now
        if self._answered:
            self._seconds = 0.0
            self._answered = False
            self._loop.call_soon_threadsafe(self._answer)
        return self._seconds

    def _answer(self) -> None:
        self._answered = True
