import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from harness import run_async, until
from headrace.errors import LogUnavailable
from headrace.log.redis.keys import Keys
from headrace.log.redis.leases import Leases, this_worker
from redis_server import RedisServer, cluster_of_three, require_server

CHILD = Path(__file__).with_name("lease_child.py")
LEASE_S = 0.8
SLACK_S = 1.0


class Queue:
    """One deployment's runs on one server; `worker` gives it workers."""

    def __init__(self, url: str, prefix: str, lease_s: float = LEASE_S) -> None:
        self.url = url
        self.keys = Keys(prefix)
        self.lease_s = lease_s

    @asynccontextmanager
    async def worker(self) -> AsyncIterator["Worker"]:
        worker = Worker(self)
        async with worker.leases:
            yield worker

    @asynccontextmanager
    async def process(self, *runs: str, blocked_s: float = 0) -> AsyncIterator["Process"]:
        """A worker in a process of its own, which holds `runs`; then its loop stands still for a while."""
        arguments = [str(CHILD), self.url, self.keys.prefix, str(self.lease_s), str(blocked_s), *runs]
        child = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
        try:
            process = Process(child)
            assert await process.says() == "held"
            yield process
        finally:
            if child.returncode is None:
                child.kill()
            await child.wait()


class Worker:
    def __init__(self, queue: Queue) -> None:
        self.lost: list[str] = []
        self.calls = 0
        self.leases = Leases(
            queue.url, queue.keys, worker=this_worker(), lease_s=queue.lease_s, lost=self.lost.append, work=self._call
        )

    def _call(self) -> None:
        self.calls += 1

    async def takes(self, run_id: str) -> float:
        """Adopt until `run_id` comes, as a supervisor would. Gives the seconds that it took."""
        began = time.monotonic()
        while run_id not in await self.leases.adopt(1):  # noqa: ASYNC110  (nobody announces what ran out)
            await asyncio.sleep(self.leases.adopt_every_s)
        return time.monotonic() - began

    async def adopts_nothing_for(self, seconds: float) -> None:
        """Look all the time and get nothing; it may not even be possible to look."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with suppress(LogUnavailable):
                assert await self.leases.adopt(10) == []
            await asyncio.sleep(LEASE_S / 20)


class Process:
    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self._child = child

    async def says(self) -> str:
        assert self._child.stdout is not None
        async with asyncio.timeout(10):
            return (await self._child.stdout.readline()).decode().strip()

    def send(self, number: signal.Signals) -> None:
        self._child.send_signal(number)


@pytest.fixture
def queue(redis_url: str, redis_prefix: str) -> Queue:
    return Queue(redis_url, redis_prefix)


def test_a_held_run_is_not_adopted_however_long_it_takes(queue: Queue) -> None:
    async def scenario() -> None:
        async with queue.worker() as first, queue.worker() as second:
            await first.leases.hold("r1")
            await second.adopts_nothing_for(3 * LEASE_S)
            assert first.lost == []

    run_async(scenario())


def test_a_released_run_is_announced_and_adopted_at_once(queue: Queue) -> None:
    async def scenario() -> None:
        async with queue.worker() as first, queue.worker() as second:
            await first.leases.hold("r1")
            await until(lambda: second.calls)  # it listens
            heard = second.calls
            await first.leases.release("r1")
            await until(lambda: second.calls > heard, deadline=LEASE_S)
            assert await second.leases.adopt(10) == ["r1"]
            assert await first.leases.adopt(10) == []

    run_async(scenario())


def test_no_more_are_adopted_than_were_asked_for_and_the_oldest_first(queue: Queue) -> None:
    async def scenario() -> None:
        async with queue.worker() as worker:
            for run_id in ("r3", "r1", "r2"):
                await worker.leases.release(run_id)
            assert await worker.leases.adopt(0) == []
            assert await worker.leases.adopt(2) == ["r1", "r2"]
            assert await worker.leases.adopt(2) == ["r3"]

    run_async(scenario())


def test_a_run_that_is_done_is_adopted_by_nobody(queue: Queue) -> None:
    async def scenario() -> None:
        async with queue.worker() as first, queue.worker() as second:
            await first.leases.hold("r1")
            await first.leases.done("r1")
            await first.leases.release("r2")
            assert await second.leases.adopt(10) == ["r2"]

    run_async(scenario())


def test_a_run_that_is_let_lapse_is_free_only_when_its_lease_has_run_out(queue: Queue) -> None:
    async def scenario() -> None:
        async with queue.worker() as first, queue.worker() as second:
            await first.leases.hold("r1")
            first.leases.let_lapse("r1")
            await second.adopts_nothing_for(LEASE_S / 2)
            assert await second.takes("r1") < LEASE_S + SLACK_S

    run_async(scenario())


def test_a_release_by_a_former_holder_changes_nothing(queue: Queue) -> None:
    async def scenario() -> None:
        async with queue.worker() as first, queue.worker() as second, queue.worker() as third:
            await first.leases.hold("r1")
            await second.leases.hold("r1")
            await first.leases.release("r1")
            assert await third.leases.adopt(10) == []

    run_async(scenario())


def test_who_is_claimed_from_hears_of_it(queue: Queue) -> None:
    async def scenario() -> None:
        async with queue.worker() as first, queue.worker() as second:
            await first.leases.hold("r1")
            await second.leases.hold("r1")
            await until(lambda: first.lost == ["r1"], deadline=LEASE_S)
            assert second.lost == []

    run_async(scenario())


def test_a_worker_that_leaves_releases_what_it_held(queue: Queue) -> None:
    async def scenario() -> None:
        async with queue.worker() as second:
            async with queue.worker() as first:
                await first.leases.hold("r1")
            assert await second.leases.adopt(10) == ["r1"]

    run_async(scenario())


def test_two_workers_that_race_for_a_hundred_runs_get_each_once(queue: Queue) -> None:
    async def adopt_all(worker: Worker) -> list[str]:
        got: list[str] = []
        while runs := await worker.leases.adopt(3):
            got += runs
        return got

    async def scenario() -> None:
        runs = [f"r{number:03}" for number in range(100)]
        async with queue.worker() as first, queue.worker() as second:
            await asyncio.gather(*map(first.leases.release, runs))
            both = await asyncio.gather(adopt_all(first), adopt_all(second))
            assert all(both)
            assert sorted(both[0] + both[1]) == runs

    run_async(scenario())


def test_a_killed_workers_run_is_taken_over_within_the_lease_and_a_second(queue: Queue) -> None:
    async def scenario() -> None:
        async with queue.worker() as second, queue.process("r1") as first:
            first.send(signal.SIGKILL)
            assert await second.takes("r1") < LEASE_S + 1 + SLACK_S

    run_async(scenario())


@pytest.mark.parametrize("afterwards", ["held", "released", "done"])
def test_a_worker_that_was_stopped_learns_what_it_has_lost_whatever_became_of_it(queue: Queue, afterwards: str) -> None:
    async def scenario() -> None:
        async with queue.worker() as second, queue.process("r1", "r2") as first:
            first.send(signal.SIGSTOP)
            await second.takes("r1")
            if afterwards == "released":
                await second.leases.release("r1")
            if afterwards == "done":
                await second.leases.done("r1")
            first.send(signal.SIGCONT)
            assert await first.says() == "lost r1"
            assert "r2" not in await second.leases.adopt(10)  # which it still holds

    run_async(scenario())


def test_a_blocked_loop_keeps_its_runs(queue: Queue) -> None:
    async def scenario() -> None:
        async with queue.worker() as second, queue.process("r1", blocked_s=3 * LEASE_S):
            await second.adopts_nothing_for(3 * LEASE_S)

    run_async(scenario())


def test_a_loop_that_is_dead_for_ten_leases_loses_its_runs(redis_url: str, redis_prefix: str) -> None:
    queue = Queue(redis_url, redis_prefix, lease_s=0.2)

    async def scenario() -> None:
        async with queue.worker() as second, queue.process("r1", blocked_s=14 * queue.lease_s) as first:
            assert await second.takes("r1") > 9 * queue.lease_s
            assert await first.says() == "lost r1"

    run_async(scenario())


def test_nobodys_runs_are_taken_over_because_the_server_stood_still(own_redis: RedisServer) -> None:
    """The command to adopt lies in the stopped server's socket, before any renewal: it comes too late to be obeyed."""
    queue = Queue(own_redis.url, "test")

    async def scenario() -> None:
        async with queue.worker() as first, queue.worker() as second:
            await first.leases.hold("r1")
            assert await first.leases.adopt(10) == await second.leases.adopt(10) == []  # the server knows the script
            own_redis.pause()
            held_up = [asyncio.ensure_future(worker.leases.adopt(10)) for worker in (first, second)]
            await asyncio.sleep(2 * LEASE_S)
            own_redis.resume()
            for adopting in held_up:
                assert await adopting == []
            await asyncio.gather(first.adopts_nothing_for(3 * LEASE_S), second.adopts_nothing_for(3 * LEASE_S))
            assert first.lost == []

    run_async(scenario())


def test_after_an_outage_the_others_have_a_lease_to_come_back(own_redis: RedisServer) -> None:
    queue = Queue(own_redis.url, "test")

    async def scenario() -> None:
        async with queue.worker() as second, queue.process("r1") as first:
            first.send(signal.SIGSTOP)
            own_redis.kill()
            await asyncio.sleep(2 * LEASE_S)
            own_redis.restart()
            await second.adopts_nothing_for(LEASE_S / 2)
            first.send(signal.SIGCONT)
            await second.adopts_nothing_for(2 * LEASE_S)

    run_async(scenario())


def test_a_loop_that_comes_back_to_life_does_not_adopt_its_own_runs(redis_url: str, redis_prefix: str) -> None:
    queue = Queue(redis_url, redis_prefix, lease_s=0.15)

    async def scenario() -> None:
        async with queue.worker() as worker:
            await worker.leases.hold("r1")
            time.sleep(13 * queue.lease_s)  # noqa: ASYNC251  (that is the matter)
            assert await worker.leases.adopt(10) == []

    run_async(scenario())


@pytest.mark.parametrize("empty", [False, True])
def test_what_was_held_before_redis_went_away_is_held_when_it_comes_back(own_redis: RedisServer, empty: bool) -> None:
    queue = Queue(own_redis.url, "test")

    async def scenario() -> None:
        async with queue.worker() as first, queue.worker() as second:
            await first.leases.hold("r1")
            own_redis.kill()
            with pytest.raises(LogUnavailable):
                await second.leases.hold("r2")
            await asyncio.sleep(2 * LEASE_S)
            own_redis.restart(empty=empty)
            await asyncio.gather(first.adopts_nothing_for(3 * LEASE_S), second.adopts_nothing_for(3 * LEASE_S))
            assert first.lost == []
            with own_redis.client() as client:
                assert client.hkeys(queue.keys.holders) == ["r1"]  # also where the server had forgotten it

    run_async(scenario())


def test_a_server_that_is_not_there_is_said_at_once() -> None:
    async def scenario() -> None:
        async with Queue("redis://127.0.0.1:9", "test").worker():
            pytest.fail("it began")

    with pytest.raises(LogUnavailable):
        run_async(scenario())


def test_a_cluster_keeps_leases_too(tmp_path: Path) -> None:
    require_server()

    async def scenario(url: str) -> None:
        queue = Queue(url, "test")
        async with queue.worker() as first, queue.worker() as second:
            await first.leases.hold("r1")
            await first.leases.hold("r2")
            await until(lambda: second.calls)
            heard = second.calls
            await first.leases.release("r1")
            await until(lambda: second.calls > heard)
            assert await second.leases.adopt(10) == ["r1"]

    with cluster_of_three(tmp_path) as nodes:
        for node in nodes:
            run_async(scenario(node.url))
