"""The same log on a cluster of three."""

import asyncio
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from redis.crc import key_slot

from harness import run_async, until
from headrace.events import TextDelta
from headrace.log.ports import Log
from headrace.log.redis import lease_scripts, scripts
from headrace.log.redis.keys import Keys
from headrace.log.redis.redislog import RedisLog
from headrace.log.retention import Retention
from headrace.testing.log_contract import DONE, LogContract, begin, run_id, text_of
from redis_server import DURABLE, RedisServer, cluster_of_three, require_server


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[RedisServer]]:
    require_server()
    with cluster_of_three(tmp_path_factory.mktemp("cluster")) as nodes:
        yield nodes


class TestRedisCluster(LogContract):
    @pytest.fixture(autouse=True)
    def _place(self, cluster: Sequence[RedisServer], redis_prefix: str) -> None:
        self.url, self.prefix = cluster[0].url, redis_prefix

    def open(self, *, max_records: int = 100_000) -> Log:
        return RedisLog(self.url, prefix=self.prefix, retention=Retention(max_records=max_records))


def test_runs_lie_on_all_servers_and_two_instances_share_them(
    cluster: Sequence[RedisServer], redis_prefix: str
) -> None:
    async def main() -> None:
        async with (
            RedisLog(cluster[0].url, prefix=redis_prefix) as a,
            RedisLog(cluster[1].url, prefix=redis_prefix) as b,
        ):
            claims = [await begin(a, number) for number in range(1, 31)]
            woken = {claim.run_id: asyncio.Event() for claim in claims}
            for claim in claims:
                b.subscribe(claim.run_id, woken[claim.run_id].set)
                await b.read_frames(claim.run_id)
            for claim in claims:
                a.writer(claim).emit(TextDelta(text=claim.run_id))
            for claim in claims:
                await woken[claim.run_id].wait()
                await a.writer(claim).commit(DONE)
                assert text_of(await b.read(claim.run_id)) == claim.run_id
            await asyncio.gather(*(b.state(claim.run_id) for claim in claims))

    run_async(main())
    for node in cluster:
        with node.client() as client:
            assert client.keys(f"{redis_prefix}:*:meta")


def test_runs_wait_for_a_server_of_the_cluster_that_is_away(tmp_path: Path) -> None:
    require_server()

    async def main(nodes: Sequence[RedisServer]) -> None:
        async with RedisLog(nodes[0].url, answer_within_s=0.5) as log:
            claims = [await begin(log, number) for number in range(1, 13)]
            nodes[2].kill()
            stored = [asyncio.create_task(log.writer(claim).commit(TextDelta(text="a"))) for claim in claims]
            await until(lambda: not log.writable)
            await asyncio.to_thread(nodes[2].start)
            await asyncio.gather(*stored)
            for claim in claims:
                await log.writer(claim).commit(TextDelta(text="b"), DONE)
                assert text_of(await log.read(claim.run_id)) == "ab"
            await until(lambda: log.writable)

    with cluster_of_three(tmp_path, *DURABLE) as nodes:
        run_async(main(nodes))


def test_the_keys_of_a_run_lie_in_one_slot_and_those_of_the_queue_in_another() -> None:
    keys = Keys("a:prefix")
    for run in (run_id(1), "a.b:c-d_e", "x"):
        names = [keys.log(run), keys.meta(run), keys.keys(run), keys.state(run)]
        assert len({key_slot(name.encode()) for name in names}) == 1
        assert len(set(names)) == 4
    assert len({key_slot(name.encode()) for name in (keys.leases, keys.holders, keys.taken)}) == 1


@pytest.mark.parametrize(
    "source",
    [script.source.decode() for script in vars(scripts).values() if isinstance(script, scripts.Script)]
    + [source for name, source in vars(lease_scripts).items() if name.isupper() and isinstance(source, str)],
)
def test_a_script_touches_only_the_keys_that_it_was_given(source: str) -> None:
    """So that a cluster refuses it where they are not in one slot, instead of letting it fail half way."""
    calls = re.findall(r"redis\.call\('(\w+)', ([^,)\s]+)", source)
    assert calls
    for command, key in calls:
        assert command in ("PUBLISH", "TIME") or key in ("leases", "holders", "taken") or key.startswith("KEYS[")
