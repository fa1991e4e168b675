"""What every `Log` must do, as tests. Subclass `LogContract` in a test module and say how your log is opened:

    class TestMyLog(LogContract):
        def open(self, *, max_records: int = 100_000) -> Log:
            return MyLog(self.place, max_records=max_records)

`open` is called once per test, and again after the first has been closed in the tests of a restart; give each test a
store of its own (a fixture may set `self.place`). Set `survives = False` for a log that forgets everything on closing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import pytest

from headrace.errors import (
    IdempotencyConflict,
    InvalidRequest,
    RunEnded,
    SeqConflict,
    StaleFence,
    UnknownRun,
)
from headrace.events import (
    CancelRequested,
    Event,
    InputReceived,
    Record,
    RunErrored,
    RunFinished,
    RunStarted,
    SteerReceived,
    TextDelta,
    ToolCallStarted,
)
from headrace.log.ports import Claim, Head, Log, NewRun
from headrace.messages import Message
from headrace.state import fold, initial
from headrace.wire.codec import encode_record, frame_seq

DEADLINE_S = 20.0
DONE = RunFinished(status="completed", output="done")

C = TypeVar("C", bound="LogContract")
AnyTest = Callable[[C, Log], Coroutine[Any, Any, None]]


def promise(test: AnyTest[C]) -> Callable[[C], None]:
    """Run an async test with an open log and a deadline."""

    def run(self: C) -> None:
        asyncio.run(_with_log(self, test))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


async def _with_log(contract: C, test: AnyTest[C]) -> None:
    async with asyncio.timeout(DEADLINE_S), contract.open() as log:
        await test(contract, log)


def started(text: str = "hello", thread_id: str = "t1") -> RunStarted:
    return RunStarted(agent="demo", thread_id=thread_id, input=(Message(role="user", content=text),))


def run_id(number: int) -> str:
    """Ids that sort like their numbers, as UUIDv7 do by time."""
    return f"01990000-0000-7000-8000-{number:012x}"


async def begin(log: Log, number: int = 1, *, tenant: str = "default", thread_id: str = "t1") -> Claim:
    created = await log.create(NewRun(run_id=run_id(number), tenant=tenant), started(thread_id=thread_id), claim=True)
    assert created.claim is not None
    return created.claim


def words(*texts: str) -> list[TextDelta]:
    return [TextDelta(text=text) for text in texts]


async def frames_of(log: Log, run: str) -> list[bytes]:
    """All that is retained, read in pages."""
    frames: list[bytes] = []
    while page := await log.read_frames(run, after=frame_seq(frames[-1]) if frames else 0, limit=7):
        frames += page
    return frames


async def unfinished(log: Log, tenant: str = "default") -> list[str]:
    """A tenant's runs without an end, oldest first."""
    return sorted(row.run_id for row in await log.runs(tenant, limit=1_000_000) if row.ended_ts is None)


def text_of(records: Sequence[Record]) -> str:
    return "".join(record.event.text for record in records if isinstance(record.event, TextDelta))


class Told:
    """An owner of a run (log.ports.Owner) that keeps what it hears: client requests, and "lost"."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[Record | str] = asyncio.Queue()

    def notify(self, record: Record) -> None:
        self.heard.put_nowait(record)

    def lose(self) -> None:
        self.heard.put_nowait("lost")


class LogContract:
    survives = True

    def open(self, *, max_records: int = 100_000) -> Log:
        raise NotImplementedError

    # Records

    @promise
    async def test_seqs_start_at_1_and_have_no_gaps(self, log: Log) -> None:
        claim = await begin(log)
        writer = log.writer(claim)
        for number in range(5):
            writer.emit(TextDelta(text=str(number)))
            await log.append(claim.run_id, [SteerReceived(steer_id=str(number), text="x")])
            writer.emit(TextDelta(text="!"))
            await log.append(claim.run_id, words("a", "b"), fence=claim.fence)
        await writer.commit(DONE)
        records = await log.read(claim.run_id)
        assert [record.seq for record in records] == list(range(1, len(records) + 1))
        assert len(records) == 1 + 5 * 5 + 1

    @promise
    async def test_a_read_gives_back_what_an_append_returned(self, log: Log) -> None:
        claim = await begin(log)
        events: list[Event] = [TextDelta(text="ä\n\u2028"), ToolCallStarted(call_id="c", name="n", turn=1), DONE]
        appended = await log.append(claim.run_id, events, fence=claim.fence)
        assert [record.event for record in appended] == events
        assert list(await log.read(claim.run_id, after=1)) == list(appended)
        frames = await log.read_frames(claim.run_id, after=1)
        assert list(frames) == [encode_record(record.seq, record.ts, record.event) for record in appended]

    @promise
    async def test_reads_are_bounded_by_after_and_limit(self, log: Log) -> None:
        claim = await begin(log)
        await log.append(claim.run_id, words(*"abcdefgh"), fence=claim.fence)
        assert text_of(await log.read(claim.run_id, after=3, limit=4)) == "cdef"
        assert list(await log.read(claim.run_id, after=9)) == []
        assert list(await log.read(claim.run_id, after=1000)) == []
        assert list(await log.read(claim.run_id, limit=0)) == []
        assert len(await log.read(claim.run_id, after=0)) == 9

    @promise
    async def test_an_unknown_run_is_an_error_everywhere(self, log: Log) -> None:
        nowhere = run_id(404)
        claim = Claim(run_id=nowhere, fence=1)
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: log.read(nowhere),
            lambda: log.read_frames(nowhere),
            lambda: log.head(nowhere),
            lambda: log.state(nowhere),
            lambda: log.claim(nowhere),
            lambda: log.append(nowhere, [CancelRequested()]),
            lambda: log.append(nowhere, [DONE], fence=1, key="k"),
        ]
        for call in calls:
            with pytest.raises(UnknownRun):
                await call()
        with pytest.raises(UnknownRun):
            log.writer(claim).emit(DONE)
        assert await log.find(nowhere) is None
        assert log.recent(nowhere, 0) is None

    @promise
    async def test_an_append_at_another_head_is_refused_and_writes_nothing(self, log: Log) -> None:
        claim = await begin(log)
        for wrong in (0, 2):
            with pytest.raises(SeqConflict):
                await log.append(claim.run_id, words("no"), fence=claim.fence, expected_seq=wrong)
        assert (await log.head(claim.run_id)).seq == 1
        await log.append(claim.run_id, words("yes"), fence=claim.fence, expected_seq=1)
        assert (await log.head(claim.run_id)).seq == 2

    @promise
    async def test_of_two_appends_expecting_the_same_head_one_wins(self, log: Log) -> None:
        claim = await begin(log)
        answers = [InputReceived(input_id="i", value=value) for value in (1, 2)]
        results = await asyncio.gather(
            *(log.append(claim.run_id, [answer], expected_seq=1) for answer in answers), return_exceptions=True
        )
        assert sorted(isinstance(result, SeqConflict) for result in results) == [False, True]
        assert (await log.head(claim.run_id)).seq == 2

    # Owners

    @promise
    async def test_a_stale_fence_is_refused_and_writes_nothing(self, log: Log) -> None:
        old = await begin(log)
        writer = log.writer(old)
        new = await log.claim(old.run_id)
        assert new.fence == old.fence + 1
        with pytest.raises(StaleFence):
            writer.emit(TextDelta(text="no"))
        with pytest.raises(StaleFence):
            await writer.commit()
        with pytest.raises(StaleFence):
            await log.append(old.run_id, words("no"), fence=old.fence)
        with pytest.raises(StaleFence):
            log.writer(old).emit(TextDelta(text="no"))
        await log.writer(new).commit(TextDelta(text="yes"))
        assert text_of(await log.read(old.run_id)) == "yes"

    @promise
    async def test_a_claim_between_emit_and_the_end_of_the_tick_keeps_the_emit_in_order(self, log: Log) -> None:
        old = await begin(log)
        log.writer(old).emit(TextDelta(text="old "))
        new = await log.claim(old.run_id)
        await log.writer(new).commit(TextDelta(text="new"))
        assert text_of(await log.read(old.run_id)) == "old new"

    @promise
    async def test_a_fence_that_was_never_given_out_is_refused(self, log: Log) -> None:
        created = await log.create(NewRun(run_id=run_id(1)), started())
        assert created.claim is None
        for fence in (0, 1, 7):
            if fence:
                with pytest.raises(StaleFence):
                    await log.append(created.run_id, words("no"), fence=fence)
        assert (await log.claim(created.run_id)).fence == 1

    @promise
    async def test_without_a_fence_only_requests_of_clients_are_taken(self, log: Log) -> None:
        claim = await begin(log)
        for event in (TextDelta(text="no"), DONE, RunErrored(code="x", message="y")):
            with pytest.raises(StaleFence):
                await log.append(claim.run_id, [CancelRequested(), event])
        requests = [CancelRequested(), SteerReceived(steer_id="s", text="t"), InputReceived(input_id="i", value=1)]
        assert len(await log.append(claim.run_id, requests)) == 3
        assert (await log.head(claim.run_id)).seq == 4

    @promise
    async def test_nothing_follows_the_terminal_record(self, log: Log) -> None:
        claim = await begin(log)
        writer = log.writer(claim)
        writer.emit(DONE)
        with pytest.raises(RunEnded):
            writer.emit(TextDelta(text="no"))
        with pytest.raises(RunEnded):
            await log.append(claim.run_id, [CancelRequested()])
        await writer.commit()
        for event in (DONE, RunErrored(code="x", message="y"), TextDelta(text="no")):
            with pytest.raises(RunEnded):
                await log.append(claim.run_id, [event], fence=claim.fence)
            with pytest.raises(RunEnded):
                writer.emit(event)
        with pytest.raises(RunEnded):
            await log.claim(claim.run_id)
        assert await log.head(claim.run_id) == Head(seq=2, first=1, closed=True)

    @promise
    async def test_an_append_with_a_terminal_record_before_its_end_writes_nothing(self, log: Log) -> None:
        claim = await begin(log)
        with pytest.raises(RunEnded):
            await log.append(claim.run_id, [*words("a"), DONE, *words("b")], fence=claim.fence)
        assert await log.head(claim.run_id) == Head(seq=1, first=1, closed=False)

    # Who works on what

    @promise
    async def test_free_runs_are_adopted_oldest_first_with_a_new_fence(self, log: Log) -> None:
        for number in (3, 1, 2):
            await log.create(NewRun(run_id=run_id(number)), started())
        first, second = await log.adopt(2)
        assert [(claim.run_id, claim.fence) for claim in (first, second)] == [(run_id(1), 1), (run_id(2), 1)]
        assert [claim.run_id for claim in await log.adopt(10)] == [run_id(3)]
        assert list(await log.adopt(10)) == []
        await log.writer(second).commit(TextDelta(text="mine"))
        assert text_of(await log.read(second.run_id)) == "mine"

    @promise
    async def test_two_that_adopt_at_once_never_get_the_same_run(self, log: Log) -> None:
        for number in range(1, 6):
            await log.create(NewRun(run_id=run_id(number)), started())
        shares = await asyncio.gather(*(log.adopt(2) for _ in range(4)))
        assert [len(share) for share in shares] == [2, 2, 1, 0]
        assert sorted(claim.run_id for share in shares for claim in share) == [run_id(n) for n in range(1, 6)]

    @promise
    async def test_a_run_that_is_held_is_not_adopted_until_it_is_released(self, log: Log) -> None:
        held = await begin(log, 1)
        await log.writer(await begin(log, 2)).commit(DONE)
        assert list(await log.adopt(10)) == []
        await log.release(held)
        (adopted,) = await log.adopt(10)
        assert adopted == Claim(run_id=held.run_id, fence=held.fence + 1, expires_at=adopted.expires_at)
        with pytest.raises(StaleFence):
            log.writer(held).emit(TextDelta(text="no"))

    @promise
    async def test_a_stale_release_and_one_of_an_ended_run_change_nothing(self, log: Log) -> None:
        old = await begin(log)
        new = await log.claim(old.run_id)
        await log.release(old)
        assert list(await log.adopt(10)) == []
        await log.writer(new).commit(DONE)
        await log.release(new)
        await log.release(Claim(run_id=run_id(404), fence=1))
        assert list(await log.adopt(10)) == []

    @promise
    async def test_a_release_is_told_to_those_who_look_for_work(self, log: Log) -> None:
        claim = await begin(log)
        work = asyncio.Event()
        stop = log.subscribe_work(work.set)
        await log.release(claim)
        await work.wait()
        stop()
        stop()
        work.clear()
        await log.release((await log.adopt(1))[0])
        assert not work.is_set()

    @promise
    async def test_whoever_begins_a_run_owns_it_and_may_write_at_once(self, log: Log) -> None:
        begun: list[Claim] = []

        def begin_to_work(claim: Claim) -> None:
            begun.append(claim)
            log.writer(claim).emit(TextDelta(text="first"))

        created = await log.create(NewRun(run_id=run_id(1)), started(), begun=begin_to_work)
        assert begun == [created.claim]
        await log.writer(begun[0]).commit(TextDelta(text=" second"))
        records = await log.read(run_id(1))
        assert [record.seq for record in records] == [1, 2, 3]
        assert (isinstance(records[0].event, RunStarted), text_of(records)) == (True, "first second")
        again = await log.create(NewRun(run_id=run_id(1)), started(), begun=begin_to_work)
        assert (again.new, len(begun)) == (False, 1)

    @promise
    async def test_who_has_lost_a_run_is_told_once(self, log: Log) -> None:
        claim = await begin(log)
        first, second = Told(), Told()
        log.subscribe_owner(claim.run_id, first)
        await log.writer(claim).commit(TextDelta(text="a"))
        assert first.heard.empty()
        again = await log.claim(claim.run_id)
        assert await first.heard.get() == "lost"
        log.subscribe_owner(claim.run_id, second)
        log.unsubscribe_owner(claim.run_id, first)
        await log.release(again)
        assert len(await log.adopt(1)) == 1
        assert await second.heard.get() == "lost"
        assert first.heard.empty()
        assert second.heard.empty()

    # Idempotency

    @promise
    async def test_an_append_with_a_key_happens_once(self, log: Log) -> None:
        claim = await begin(log)
        both = await asyncio.gather(
            log.append(claim.run_id, [CancelRequested()], key="k"),
            log.append(claim.run_id, [CancelRequested()], key="k"),
        )
        assert list(both[0]) == list(both[1])
        await log.writer(claim).commit(TextDelta(text="later"), DONE)
        assert list(await log.append(claim.run_id, [CancelRequested()], key="k")) == list(both[0])
        with pytest.raises(RunEnded):
            await log.append(claim.run_id, [CancelRequested()], key="another")
        assert (await log.head(claim.run_id)).seq == 4

    @promise
    async def test_the_same_key_gives_the_same_run_also_at_the_same_time(self, log: Log) -> None:
        news = [NewRun(run_id=run_id(n), key="k", fingerprint="f") for n in range(1, 5)]
        created = await asyncio.gather(*(log.create(new, started(), claim=True) for new in news))
        assert {result.run_id for result in created} == {run_id(1)}
        assert [result.new for result in created] == [True, False, False, False]
        assert [result.claim is not None for result in created] == [True, False, False, False]
        again = await log.create(NewRun(run_id=run_id(9), key="k", fingerprint="f"), started())
        assert (again.run_id, again.new) == (run_id(1), False)
        assert [row.run_id for row in await log.runs("default")] == [run_id(1)]

    @promise
    async def test_a_key_with_another_request_is_a_conflict(self, log: Log) -> None:
        await log.create(NewRun(run_id=run_id(1), key="k", fingerprint="f"), started())
        with pytest.raises(IdempotencyConflict):
            await log.create(NewRun(run_id=run_id(2), key="k", fingerprint="g"), started())
        assert await log.find(run_id(2)) is None
        second = await log.create(NewRun(run_id=run_id(2), key="other", fingerprint="g"), started())
        assert second.new

    @promise
    async def test_a_key_is_its_tenants_own(self, log: Log) -> None:
        first = await log.create(NewRun(run_id=run_id(1), tenant="a", key="k", fingerprint="f"), started())
        second = await log.create(NewRun(run_id=run_id(2), tenant="b", key="k", fingerprint="g"), started())
        assert (first.new, second.new) == (True, True)

    @promise
    async def test_a_run_id_begins_one_run(self, log: Log) -> None:
        new = NewRun(run_id=run_id(1), fingerprint="f")
        both = await asyncio.gather(log.create(new, started()), log.create(new, started()))
        assert sorted(result.new for result in both) == [False, True]
        with pytest.raises(IdempotencyConflict):
            await log.create(NewRun(run_id=run_id(1), fingerprint="g"), started())
        with pytest.raises(IdempotencyConflict):
            await log.create(NewRun(run_id=run_id(1), tenant="b", fingerprint="f"), started())
        assert (await log.head(run_id(1))).seq == 1

    @promise
    async def test_a_run_id_that_is_none_is_refused(self, log: Log) -> None:
        for wrong in ("", "a b", "a\nb", "../x", "x" * 129, "é"):
            with pytest.raises(InvalidRequest):
                await log.create(NewRun(run_id=wrong), started())
        assert await unfinished(log) == []

    # Seeing

    @promise
    async def test_an_emitted_record_is_seen_once_it_is_durable(self, log: Log) -> None:
        claim = await begin(log)
        writer = log.writer(claim)
        writer.emit(TextDelta(text="a"))
        assert writer.seq == 2
        assert log.recent(claim.run_id, 1) in (None, (), [])
        await writer.commit(TextDelta(text="b"))
        assert (await log.head(claim.run_id)).seq == 3
        assert text_of(await log.read(claim.run_id)) == "ab"

    @promise
    async def test_a_commit_of_nothing_waits_for_what_was_emitted(self, log: Log) -> None:
        claim = await begin(log)
        writer = log.writer(claim)
        writer.emit(TextDelta(text="a"))
        await writer.commit()
        assert (await log.head(claim.run_id)).seq == 2
        await writer.commit()

    @promise
    async def test_a_wake_up_comes_when_the_records_can_be_read(self, log: Log) -> None:
        claim = await begin(log)
        seen: list[bytes] = []
        woken = asyncio.Event()

        def wake() -> None:
            woken.set()
            seen.extend(log.recent(claim.run_id, len(seen) + 1) or ())

        stop = log.subscribe(claim.run_id, wake)
        await log.writer(claim).commit(*words("a", "b"))
        await woken.wait()
        while len(seen) < 2:
            await asyncio.sleep(0)
            seen.extend(await log.read_frames(claim.run_id, after=len(seen) + 1))
        assert seen == list(await log.read_frames(claim.run_id, after=1))
        stop()
        stop()
        woken.clear()
        await log.writer(claim).commit(TextDelta(text="c"))
        assert not woken.is_set()

    @promise
    async def test_a_follower_that_subscribes_then_reads_misses_nothing(self, log: Log) -> None:
        claim = await begin(log)
        writer = log.writer(claim)

        async def write() -> None:
            for number in range(200):
                writer.emit(TextDelta(text=f"{number} "))
                if number % 3 == 0:
                    await asyncio.sleep(0)
            await writer.commit(DONE)

        async def follow(after: int) -> list[int]:
            woken = asyncio.Event()
            stop = log.subscribe(claim.run_id, woken.set)
            seqs: list[int] = []
            while not (await log.head(claim.run_id)).closed or after < (await log.head(claim.run_id)).seq:
                frames = log.recent(claim.run_id, after)
                if frames is None:
                    frames = await log.read_frames(claim.run_id, after=after)
                if frames:
                    seqs += map(frame_seq, frames)
                    after = seqs[-1]
                else:
                    await woken.wait()
                    woken.clear()
            stop()
            return seqs

        first, second, _ = await asyncio.gather(follow(0), follow(1), write())
        assert first == list(range(1, 203))
        assert second == first[1:]

    @promise
    async def test_a_wake_up_that_fails_disturbs_nobody(self, log: Log) -> None:
        claim = await begin(log)
        woken = asyncio.Event()

        def fail() -> None:
            raise RuntimeError("a follower's bug")

        stops = [log.subscribe(claim.run_id, fail), log.subscribe(claim.run_id, woken.set)]
        await log.writer(claim).commit(TextDelta(text="a"))
        await woken.wait()
        for stop in stops:
            stop()

    @promise
    async def test_requests_of_clients_are_told_to_the_owner_in_order(self, log: Log) -> None:
        claim = await begin(log)
        owner = Told()
        log.subscribe_owner(claim.run_id, owner)
        log.writer(claim).emit(TextDelta(text="not a request"))
        first = await log.append(claim.run_id, [SteerReceived(steer_id="s", text="t")])
        second = await log.append(claim.run_id, [CancelRequested()], key="k")
        await log.append(claim.run_id, [CancelRequested()], key="k")
        assert [await owner.heard.get(), await owner.heard.get()] == [*first, *second]
        log.unsubscribe_owner(claim.run_id, owner)
        await log.append(claim.run_id, [CancelRequested(reason="unheard")])
        assert owner.heard.empty()

    @promise
    async def test_what_is_recent_reaches_the_head_whatever_its_length(self, log: Log) -> None:
        claim = await begin(log)
        writer = log.writer(claim)
        for number in range(3000):
            writer.emit(TextDelta(text=str(number)))
        await writer.commit()
        seqs: list[int] = []
        while True:
            after = seqs[-1] if seqs else 0
            frames = log.recent(claim.run_id, after)
            frames = await log.read_frames(claim.run_id, after=after) if frames is None else frames
            if not frames:
                break
            seqs += map(frame_seq, frames)
        assert seqs == list(range(1, 3002))

    # State and lists

    @promise
    async def test_the_state_is_the_fold_of_the_records_at_every_moment(self, log: Log) -> None:
        claim = await begin(log)
        writer = log.writer(claim)
        for number in range(40):
            writer.emit(TextDelta(text=f"{number} "))
            if number % 7 == 0:
                await log.append(claim.run_id, [SteerReceived(steer_id=str(number), text="x")])
                assert await log.state(claim.run_id) == fold(await log.read(claim.run_id), initial(claim.run_id))
        await writer.commit(DONE)
        state = await log.state(claim.run_id)
        assert state == fold(await log.read(claim.run_id), initial(claim.run_id))
        assert (state.status, state.seq) == ("completed", (await log.head(claim.run_id)).seq)

    def test_a_long_run_is_trimmed_from_the_front_and_its_state_covers_what_went(self) -> None:
        asyncio.run(self._trimmed())

    async def _trimmed(self) -> None:
        async with asyncio.timeout(DEADLINE_S), self.open(max_records=50) as log:
            claim = await begin(log)
            writer = log.writer(claim)
            for number in range(500):
                writer.emit(TextDelta(text=f"{number} "))
                if number % 20 == 0:
                    await writer.commit()
            await writer.commit()
            head = await log.head(claim.run_id)
            records = await log.read(claim.run_id)
            state = await log.state(claim.run_id)
            assert head.seq == 501
            assert 50 <= len(records) <= 100
            assert [record.seq for record in records] == list(range(head.first, 502))
            assert state.text == "".join(f"{number} " for number in range(500))
            assert log.recent(claim.run_id, 0) is None
            assert await log.read(claim.run_id, after=head.first + 3) == records[4:]

    @promise
    async def test_a_tenant_sees_its_own_runs_newest_first(self, log: Log) -> None:
        for number in range(1, 8):
            await begin(log, number, tenant="ab"[number % 2], thread_id=f"t{number % 3}")
        await begin(log, 100, tenant="c")
        ids = [row.run_id for row in await log.runs("b")]
        assert ids == [run_id(7), run_id(5), run_id(3), run_id(1)]
        assert {row.tenant for row in await log.runs("b")} == {"b"}
        assert [row.run_id for row in await log.runs("b", limit=2)] == ids[:2]
        assert [row.run_id for row in await log.runs("b", before=ids[1], limit=2)] == ids[2:]
        assert [row.run_id for row in await log.runs("b", thread_id="t1")] == [run_id(7), run_id(1)]
        assert list(await log.runs("nobody")) == []

    @promise
    async def test_a_row_says_how_the_run_stands(self, log: Log) -> None:
        claim = await begin(log, tenant="x")
        row = await log.find(claim.run_id)
        assert row is not None
        assert (row.tenant, row.agent, row.thread_id, row.status, row.ended_ts) == ("x", "demo", "t1", "running", None)
        await log.writer(claim).commit(TextDelta(text="a"), DONE)
        row = await log.find(claim.run_id)
        assert row is not None
        assert (row.status, row.seq, row.title) == ("completed", 3, "hello")
        assert row.ended_ts is not None
        assert list(await log.runs("x")) == [row]

    # Restart

    def test_a_restart_keeps_everything(self) -> None:
        if not self.survives:
            pytest.skip("this log forgets everything on closing")
        asyncio.run(self._restarted())

    async def _restarted(self) -> None:
        new = NewRun(run_id=run_id(1), tenant="a", key="k", fingerprint="f")
        async with asyncio.timeout(DEADLINE_S), self.open() as log:
            created = await log.create(new, started(), claim=True)
            claim = await log.claim(created.run_id)
            await log.append(claim.run_id, [CancelRequested()], key="c")
            await log.writer(claim).commit(*words("a", "b"))
            ended = await begin(log, 2, tenant="a")
            await log.writer(ended).commit(DONE)
            before = [await _everything(log, run) for run in (claim.run_id, ended.run_id)]
        async with asyncio.timeout(DEADLINE_S), self.open() as log:
            assert [await _everything(log, run) for run in (claim.run_id, ended.run_id)] == before
            assert await unfinished(log, "a") == [claim.run_id]
            again = await log.create(NewRun(run_id=run_id(9), tenant="a", key="k", fingerprint="f"), started())
            assert (again.run_id, again.new) == (claim.run_id, False)
            assert [r.seq for r in await log.append(claim.run_id, [CancelRequested()], key="c")] == [2]
            await log.append(claim.run_id, words("c"), fence=claim.fence)
            assert (await log.claim(claim.run_id)).fence == claim.fence + 1
            assert text_of(await log.read(claim.run_id)) == "abc"
            with pytest.raises(RunEnded):
                await log.append(ended.run_id, [CancelRequested()])

    def test_what_a_closed_log_held_is_adopted_after_a_restart(self) -> None:
        if not self.survives:
            pytest.skip("this log forgets everything on closing")
        asyncio.run(self._adopted_after_a_restart())

    async def _adopted_after_a_restart(self) -> None:
        async with asyncio.timeout(DEADLINE_S), self.open() as log:
            held = await log.claim((await begin(log, 1)).run_id)
            released = await begin(log, 2)
            await log.release(released)
            await log.writer(await begin(log, 3)).commit(DONE)
        async with asyncio.timeout(DEADLINE_S), self.open() as log:
            adopted = [(claim.run_id, claim.fence) for claim in await log.adopt(10)]
            assert adopted == [(held.run_id, held.fence + 1), (released.run_id, released.fence + 1)]
            assert list(await log.adopt(10)) == []


async def _everything(log: Log, run: str) -> tuple[object, ...]:
    return (await log.head(run), await frames_of(log, run), await log.state(run), await log.find(run))
