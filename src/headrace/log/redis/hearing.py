"""What this process hears of runs, and whom it tells.

Of a run that it has, it hears that others have appended something or claimed it, and asks for that with the next
batch. Of any other run it hears only while somebody here follows it, and reads it once for all who do (tails.py).
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from headrace.log.live import LiveRun
from headrace.log.livereads import RECENT_FRAMES
from headrace.log.redis.channels import Channels
from headrace.log.redis.deployment import Deployment
from headrace.log.redis.stored import StoredRuns
from headrace.log.redis.tails import Tails
from headrace.wire.codec import frame_seq


class Hearing:
    """Run what `work` returns. `news` is told of runs of this process to ask about; `broken` that nothing is heard."""

    def __init__(
        self,
        runs: Mapping[str, LiveRun],
        at: Deployment,
        *,
        stored: StoredRuns,
        news: Callable[[LiveRun], None],
        broken: Callable[[], None],
    ) -> None:
        self._runs = runs
        self._news = news
        self._keys = keys = at.keys
        self._worker_channel = keys.worker(at.worker).encode()
        self._channels = Channels(at.reads.connection_to_any, heard=self.heard, begun=self.begun, broken=broken)
        self._channels.listen(self._worker_channel)
        self.tails = Tails(
            stored,
            wanted=lambda run_id: self._channels.listen(keys.follow(run_id).encode()),
            unwanted=lambda run_id: self._channels.ignore(keys.follow(run_id).encode()),
        )

    def work(self) -> Sequence[Coroutine[Any, Any, None]]:
        return self._channels.hear(), self._channels.speak()

    def recent(self, run_id: str, after: int) -> Sequence[bytes] | None:
        """See `ports.Wakeups.recent`; for a run that other workers have."""
        tail = self.tails.get(run_id)
        return None if tail is None else tail.recent(after, RECENT_FRAMES)

    def has_read(self, run_id: str, after: int, frames: Sequence[bytes], head: int) -> None:
        """A follower may have come up to the head: from there on it is served by the run's tail."""
        tail = self.tails.get(run_id)
        reached = frame_seq(frames[-1]) if frames else after
        if tail is not None and reached >= head and tail.place(head):
            self.tails.stir(run_id)  # what came since then may have been announced before anybody listened

    def heard(self, channel: bytes, message: bytes) -> None:
        if channel != self._worker_channel:
            self.tails.announce(self._run_of(channel), int(message))
        elif run := self._runs.get(message.decode()):
            self._news(run)

    def begun(self, channel: bytes) -> None:
        """What was said on this channel before now was not heard."""
        if channel != self._worker_channel:
            self.tails.stir(self._run_of(channel))
        else:
            self.ask_about_all()

    def ask_about_all(self) -> None:
        for run in tuple(self._runs.values()):
            self._news(run)

    def stir(self) -> None:
        """Look at everything that waits for word, without having had any."""
        self.ask_about_all()
        self.tails.stir_all()

    def _run_of(self, channel: bytes) -> str:
        return channel.decode().removeprefix(self._keys.follow_prefix)
