"""The owner's hand on a run in memory. `emit` is the hottest function of the house: every line of it is measured."""

from headrace.events import Event
from headrace.log.batch import GroupCommit
from headrace.log.live import SPECIAL, LiveRun
from headrace.log.ports import Claim
from headrace.log.rules import refusal
from headrace.wire.codec import encode_record


class LiveWriter:
    """See `ports.Writer`."""

    __slots__ = ("_claim", "_commits", "_run", "_token")

    def __init__(self, run: LiveRun, claim: Claim, commits: GroupCommit) -> None:
        self._run = run
        self._claim = claim
        self._commits = commits
        self._token = run.token if claim.fence == run.fence and not run.ending else object()

    @property
    def seq(self) -> int:
        return self._run.last

    def emit(self, event: Event) -> None:
        run = self._run
        if run.token is not self._token:
            raise refusal(run, self._claim.fence)
        batch = self._commits.batch or self._commits.open()
        seq = run.last + 1
        frame = encode_record(seq, batch.ts, event)  # may raise: nothing has changed yet
        run.last = seq
        if not run.pending:
            batch.runs.append(run)
        run.pending.append(frame)
        if type(event) in SPECIAL:
            run.noted(seq, batch.ts, event)

    async def commit(self, *events: Event) -> None:
        for event in events:
            self.emit(event)
        run = self._run
        if run.token is not self._token and (run.fence != self._claim.fence or not run.ending):
            raise refusal(run, self._claim.fence)
        if run.head != run.last:
            await self._commits.durable(run)
