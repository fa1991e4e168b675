"""One connection to a server: what is asked is answered, whatever happens to the connection meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from harness import run_async, until
from headrace.errors import LogUnavailable
from headrace.log.redis.link import Request, packed
from headrace.log.redis.scripts import Script
from headrace.log.redis.servers import Servers
from headrace.log.redis.wire import Answer
from proxy import Link, Proxy
from redis_server import RedisServer

WITHIN_S = 0.5
TWICE = Script("twice", "return {ARGV[1], ARGV[1]}")


@asynccontextmanager
async def servers(url: str) -> AsyncIterator[Servers]:
    probe = (b"SET", b"probe", b"")
    async with Servers(url, answer_within_s=WITHIN_S, changed=lambda: None, probe=probe) as opened:
        yield opened


class Dribble(Proxy):
    """Answers arrive byte by byte."""

    async def _down(self, link: Link, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await upstream.read(65536):
            for n in range(len(data)):
                writer.write(data[n : n + 1])
                await writer.drain()
                await asyncio.sleep(0)


def test_answers_that_come_byte_by_byte_reach_those_who_asked(redis_url: str) -> None:
    async def main() -> None:
        port = int(redis_url.rpartition(":")[2])
        async with Dribble(port) as slow, servers(f"redis://127.0.0.1:{slow.port}") as server:
            texts = [b"%d\r\n" % n for n in range(20)]
            asked = [server.run(TWICE, [b"key"], [text]) for text in texts]
            assert await asyncio.gather(*asked) == [[text, text] for text in texts]

    run_async(main())


def test_a_server_that_has_forgotten_a_script_is_told_it_again(own_redis: RedisServer) -> None:
    async def main() -> None:
        async with servers(own_redis.url) as server:
            for _ in range(2):
                with own_redis.client() as client:
                    client.script_flush()
                asked = [server.ask(b"", (b"ECHO", b"before")), server.run(TWICE, [b"key"], [b"EVALSHA"])]
                asked.append(server.ask(b"", (b"ECHO", b"after")))
                assert await asyncio.gather(*asked) == [b"before", [b"EVALSHA", b"EVALSHA"], b"after"]

    run_async(main())


def test_a_connection_that_breaks_while_nothing_is_asked_is_opened_again(own_redis: RedisServer) -> None:
    async def main() -> None:
        changes: list[str | None] = []
        async with Servers(
            own_redis.url, answer_within_s=WITHIN_S, changed=lambda: changes.append(server.failing)
        ) as server:
            with own_redis.client() as client:
                client.client_kill_filter(_type="normal")
            await until(lambda: len(changes) == 2)
            assert changes[0] is not None
            assert changes[1] is None

    run_async(main())


def test_a_server_that_takes_things_again_is_found_out_though_nobody_waits_for_it(own_redis: RedisServer) -> None:
    async def main() -> None:
        with own_redis.client() as client:
            async with servers(own_redis.url) as server:
                client.config_set("maxmemory", "1")
                with pytest.raises(LogUnavailable):
                    await server.call(b"", (b"SET", b"a", b"b"), within=WITHIN_S)
                assert server.failing is not None
                client.config_set("maxmemory", "0")
                await until(lambda: server.failing is None)
                assert client.get("a") is None

    run_async(main())


def test_a_server_that_stands_still_is_given_up_and_asked_again(own_redis: RedisServer) -> None:
    async def main() -> None:
        async with servers(own_redis.url) as server:
            own_redis.pause()
            asked = [server.ask(b"", (b"ECHO", b"%d" % n * 100_000)) for n in range(3)]
            await until(lambda: server.failing is not None)
            own_redis.resume()
            assert await asyncio.gather(*asked) == [b"%d" % n * 100_000 for n in range(3)]
            await until(lambda: server.failing is None)

    run_async(main())


class Clumsy(asyncio.Future[Answer]):
    def set_result(self, answer: Answer, /) -> None:
        super().set_result(answer)
        raise RuntimeError("a bug in who asked")


def test_who_fails_to_take_an_answer_in_disturbs_nobody_else(redis_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with servers(redis_url) as server:
            server.route(Request(b"", packed((b"ECHO", b"a")), Clumsy()))
            assert await server.call(b"", (b"ECHO", b"b"), within=WITHIN_S) == b"b"
            assert server.failing is None

    run_async(main())
    assert "could not be taken in" in caplog.text
