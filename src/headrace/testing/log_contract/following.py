"""What followers and owners see, and when they are told."""

import asyncio

from headrace.events import CancelRequested, SteerReceived, TextDelta
from headrace.log.ports import Log
from headrace.testing.log_contract.runs import DONE, Contract, Told, begin, promise, text_of, words
from headrace.wire.codec import frame_seq


class FollowingContract(Contract):
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
