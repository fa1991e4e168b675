"""Appending outside the owner's batches: what clients ask for, and what depends on the head or on a key."""

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import suppress

from headrace.errors import HeadraceError, UnknownRun
from headrace.events import TERMINALS, Event, Record
from headrace.log.live import LiveRun
from headrace.log.redis.appends import Appends, Single
from headrace.log.redis.deployment import Deployment
from headrace.log.redis.stored import StoredRuns, body_of
from headrace.log.redis.wire import Answer
from headrace.log.redis.writing import Writing, lost_records
from headrace.log.rules import refuse_events, run_ended, seq_conflict, stale_fence
from headrace.wire.codec import decode_record, encode_record


class SingleAppends:
    def __init__(self, at: Deployment, *, appends: Appends, stored: StoredRuns, writing: Writing) -> None:
        self._at = at
        self._appends = appends
        self._stored = stored
        self._writing = writing

    async def append(
        self,
        run_id: str,
        events: Sequence[Event],
        *,
        run: LiveRun | None,
        expected_seq: int | None,
        fence: int | None,
        key: str | None,
    ) -> Sequence[Record]:
        """See `RunLog.append`. `run` is the run in memory, if this process has it."""
        if run is not None and run.ending and key is None:
            raise run_ended(run_id)
        refuse_events(run_id, events, fence)
        if run is not None and run.last > run.head and fence is not None:
            await self._writing.commits.durable(run)  # what its owner emitted before stands before
        ts = self._at.clock()
        append = Single(
            run_id=run_id,
            bodies=[body_of(encode_record(0, ts, event)) for event in events],
            key=key or f"~{secrets.token_hex(8)}",
            ends=isinstance(events[-1], TERMINALS),
            fence=fence,
            known=None if run is None else run.head,
            expected=expected_seq,
        )
        # The owner waits for Redis as its batches do; a client is told to come again.
        patient = run is not None and fence == run.fence
        within_s = None if patient else self._at.within_s
        answer = await self._at.writes.answered(self._appends.single(append), within=within_s)
        if answer[0] == b"again" and key is not None:
            return await self._appended_before(run_id, answer[1])
        if answer[0] not in (b"ok", b"again"):
            raise self._refused(append, run, answer)
        first = answer[1] if answer[0] == b"ok" else _span(answer[1])[0]
        if run is not None:
            await self._take_in(run, append, first, answer)
        return [
            Record(run_id=run_id, seq=seq, ts=ts, event=event)  # type: ignore[arg-type]
            for seq, event in enumerate(events, first)
        ]

    async def _appended_before(self, run_id: str, span: bytes) -> list[Record]:
        first, last = _span(span)
        frames = await self._stored.frames(run_id, first - 1, last + 1 - first) or []
        records = [decode_record(run_id, frame) for frame in frames]
        return [record for record in records if record.seq <= last]

    async def _take_in(self, run: LiveRun, append: Single, first: int, answer: Answer) -> None:
        """What this process has appended outside its batches goes into its memory like what others append."""
        if run.ended:
            return
        if append.known == run.head and answer[0] == b"ok" and self._writing.commits.flying is None:
            if append.ends:
                self._writing.lose(run, lambda: run_ended(run.id))
            self._writing.catch_up(run, run.head + 1, [*answer[2:], *append.bodies])
            if append.ends:
                self._writing.ended[run.id] = run
        else:
            with suppress(TimeoutError):  # what was asked is done; this process hears of it sooner or later
                async with asyncio.timeout(self._at.within_s):
                    await self._writing.news(run)

    def _refused(self, append: Single, run: LiveRun | None, answer: Answer) -> HeadraceError:
        status = answer[0]
        if status == b"conflict":
            return seq_conflict(append.run_id, answer[1], append.expected or 0)
        if status == b"ended":
            if run is not None:
                self._writing.ask_for_news(run)
            return run_ended(append.run_id)
        if status == b"stale":
            if run is not None and append.fence == run.fence:
                self._writing.stale(run)
            return stale_fence(append.run_id, answer[1], append.fence or 0)
        if run is None:
            return UnknownRun(f"there is no run {append.run_id}", hint="It is forgotten by now, or never began.")
        self._writing.ask_for_news(run)  # the batch finds out the same, and ends the run
        return lost_records(run)


def _span(text: bytes) -> tuple[int, int]:
    first, _, last = text.partition(b"-")
    return int(first), int(last)
