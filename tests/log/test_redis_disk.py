"""The disk under Redis: full, or taken back to an earlier state while nobody lived who knew of a later one."""

import asyncio
import shutil
import sys
from pathlib import Path

import pytest

from harness import run_async, until
from headrace.errors import LogUnavailable
from headrace.events import CancelRequested, TextDelta
from headrace.log.ports import NewRun
from headrace.log.redis.redislog import RedisLog
from headrace.testing.log_contract import DONE, begin, run_id, started, text_of, words
from proxy import Proxy
from redis_server import DURABLE, RedisServer, require_server

WITHIN_S = 0.5
EVERYSEC = ("--appendonly", "yes", "--appendfsync", "everysec", "--save", "")

linux = pytest.mark.skipif(sys.platform != "linux", reason="only there a process can be given less room from outside")


async def turned_away(log: RedisLog) -> None:
    """Wait until the log cannot be written; a new run is refused then."""
    await until(lambda: not log.writable)
    with pytest.raises(LogUnavailable):
        await log.create(NewRun(run_id=run_id(2)), started(), claim=True)


@linux
@pytest.mark.parametrize("options", [EVERYSEC, DURABLE], ids=["everysec", "always"])
def test_a_run_waits_for_room_on_the_disk_of_redis_and_loses_nothing(tmp_path: Path, options: tuple[str, ...]) -> None:
    require_server()

    async def scenario(server: RedisServer) -> None:
        async with RedisLog(server.url, answer_within_s=WITHIN_S) as log:
            writer = log.writer(await begin(log))
            said = ["before "]
            await writer.commit(*words(*said))
            server.fill_disk()
            while log.writable:
                said.append(f"{len(said)} ")
                writer.emit(TextDelta(text=said[-1]))
                await asyncio.sleep(0.01)
            await turned_away(log)
            server.free_disk()
            if options is DURABLE:
                assert server.has_ended()
                await asyncio.to_thread(server.start)
            await writer.commit(TextDelta(text="after"), DONE)
            assert text_of(await log.read(run_id(1))) == "".join(said) + "after"
            await until(lambda: log.writable)

    with RedisServer(tmp_path / "redis", *options) as server:
        run_async(scenario(server))


def test_a_tail_that_is_lost_with_every_instance_is_missed_by_nobody(own_redis: RedisServer, tmp_path: Path) -> None:
    """Not what one would wish: the run goes on from what Redis has, and gives out the lost seqs again."""
    earlier = tmp_path / "earlier"

    async def first_life() -> None:
        async with RedisLog(own_redis.url, answer_within_s=WITHIN_S) as log:
            writer = log.writer(await begin(log))
            await writer.commit(*words("kept "))
            await asyncio.to_thread(shutil.copytree, own_redis.folder, earlier)
            await writer.commit(*words("acknowledged, ", "and lost"))
            own_redis.kill()

    async def second_life() -> None:
        async with RedisLog(own_redis.url, lease_s=0.3, answer_within_s=WITHIN_S) as log:
            async with asyncio.timeout(10):
                while not (claims := await log.adopt(1)):  # noqa: ASYNC110  (a lease runs out without a word)
                    await asyncio.sleep(0.05)
            await log.writer(claims[0]).commit(*words("said anew"), DONE)
            records = await log.read(run_id(1))
            assert text_of(records) == "kept said anew"
            assert [record.seq for record in records] == [1, 2, 3, 4]

    run_async(first_life())
    go_back(own_redis, earlier)
    run_async(second_life())


def test_a_request_that_is_lost_before_its_owner_has_heard_of_it_is_missed_by_nobody(
    own_redis: RedisServer, tmp_path: Path
) -> None:
    """Not what one would wish either: it was accepted, and what its owner knows is all there."""
    earlier = tmp_path / "earlier"

    async def scenario() -> None:
        async with (
            Proxy(own_redis.port) as link,
            RedisLog(f"redis://127.0.0.1:{link.port}", answer_within_s=WITHIN_S) as owner,
            RedisLog(own_redis.url, answer_within_s=WITHIN_S) as other,
        ):
            writer = owner.writer(await begin(owner))
            await writer.commit(*words("kept "))
            await asyncio.to_thread(shutil.copytree, own_redis.folder, earlier)
            link.hole = True
            (accepted,) = await other.append(run_id(1), [CancelRequested()])
            own_redis.kill()
            link.hole = False
            link.cut()
            await asyncio.to_thread(go_back, own_redis, earlier)
            await writer.commit(*words("goes on"), DONE)
            await until(lambda: other.writable)
            records = await other.read(run_id(1))
            assert text_of(records) == "kept goes on"
            assert records[accepted.seq - 1].event == TextDelta(text="goes on")

    run_async(scenario())


def go_back(server: RedisServer, earlier: Path) -> None:
    """Start a killed server with the files of an earlier moment."""
    shutil.rmtree(server.folder)
    shutil.move(earlier, server.folder)
    server.start()
