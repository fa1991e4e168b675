"""The link is cut after every single byte that it carries; each record arrives once and in order all the same."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

import pytest

from client_server import Talker, logged, serving
from harness import run_async, until
from headrace.client import AsyncClient, Item, Run
from headrace.config import ServerConfig
from headrace.events import SteerReceived
from headrace.server import Server
from proxy import Proxy

AT_ONCE = 128
"""Links that are cut side by side, each at another byte."""

SLACK = 64
"""Cuts beyond the measured length: framing depends on how many records share a write."""

Read = Callable[[AsyncClient, Run], Awaitable[list[Item]]]


async def over_sse(client: AsyncClient, run: Run) -> list[Item]:
    async with aclosing(run.events(chunk="token")) as items:
        return [item async for item in items]


async def over_websocket(client: AsyncClient, run: Run) -> list[Item]:
    async with client.connect() as socket:
        followed = await socket.follow(run.id, chunk="token")
        return [item async for item in followed.events()]


async def read_through(proxy: Proxy, read: Read, run_id: str) -> list[Item]:
    async with AsyncClient(proxy.url) as client:
        return await read(client, client.run(run_id))


async def one_round(server: Server, talker: Talker, cuts: Sequence[int | None], read: Read) -> int:
    """One live run, followed by one client for each cut. Returns the most bytes any link carried."""
    talker.gate.clear()
    async with AsyncClient(server.url) as starter, Proxy(server.port) as proxy:
        run = await starter.start("hi")
        proxy.cuts.extend(cuts)
        async with asyncio.TaskGroup() as group:
            readers = [group.create_task(read_through(proxy, read, run.id)) for _ in cuts]
            await until(lambda: len(proxy.links) >= len(cuts))
            talker.gate.set()
        whole = await logged(server, run.id)
        assert [record.seq for record in whole] == list(range(1, len(whole) + 1))
        assert not proxy.cuts
        for reader in readers:
            assert reader.result() == whole
        return max(link.down for link in proxy.links)


@pytest.mark.slow
@pytest.mark.parametrize("read", [over_sse, over_websocket])
def test_cut_at_every_byte_each_record_comes_once_and_in_order(read: Read) -> None:
    async def scenario() -> None:
        talker = Talker()
        async with serving(talker) as server:
            size = await one_round(server, talker, [None], read)
            for first in range(1, size + SLACK, AT_ONCE):
                await one_round(server, talker, range(first, first + AT_ONCE), read)

    run_async(scenario(), deadline=240)


@pytest.mark.slow
def test_a_start_whose_answer_is_cut_at_any_byte_starts_one_run() -> None:
    async def scenario() -> None:
        talker = Talker()
        async with serving(talker) as server, Proxy(server.port) as proxy:
            async with AsyncClient(proxy.url) as client:
                await client.start("hi")
            size = proxy.links[0].down
            proxy.cuts.extend(range(1, size + 1))

            async def start() -> str:
                async with AsyncClient(proxy.url) as client:
                    return (await client.start("hi")).id

            ids = await asyncio.gather(*(start() for _ in range(size)))
            assert not proxy.cuts
            assert len(set(ids)) == size
            assert len(await server.log.runs("default", limit=1000)) == size + 1

    run_async(scenario(), deadline=120)


Steer = Callable[[AsyncClient, str], Awaitable[str]]


async def steered_over_http(client: AsyncClient, run_id: str) -> str:
    return await client.run(run_id).steer("shorter")


async def steered_over_websocket(client: AsyncClient, run_id: str) -> str:
    async with client.connect() as socket:
        return await (await socket.follow(run_id, types=["run.finished"])).steer("shorter")


async def steer_through(proxy: Proxy, steer: Steer, run_id: str) -> str:
    async with AsyncClient(proxy.url) as client:
        return await steer(client, run_id)


async def steered_once_each(steer: Steer, cuts: Callable[[int], Sequence[int]]) -> None:
    """Steers whose links are cut at `cuts(what a whole one carries)`, each of which the run must have received once."""
    talker = Talker()
    talker.gate.clear()
    async with serving(talker) as server, Proxy(server.port) as proxy, AsyncClient(server.url) as starter:
        run = await starter.start("hi")
        ids = [await steer_through(proxy, steer, run.id)]
        chosen = cuts(proxy.links[0].down)
        proxy.cuts.extend(chosen)
        ids += await asyncio.gather(*(steer_through(proxy, steer, run.id) for _ in chosen))
        assert not proxy.cuts
        received = [r.event.steer_id for r in await logged(server, run.id) if isinstance(r.event, SteerReceived)]
        assert sorted(received) == sorted(ids)
        assert len(set(ids)) == len(chosen) + 1
        talker.gate.set()
        await run.result()


@pytest.mark.parametrize("steer", [steered_over_http, steered_over_websocket])
def test_a_steer_whose_answer_is_lost_is_asked_again_and_received_once(steer: Steer) -> None:
    run_async(steered_once_each(steer, lambda size: [1, size // 2, size - 1]))


@pytest.mark.slow
@pytest.mark.parametrize("steer", [steered_over_http, steered_over_websocket])
def test_a_steer_whose_answer_is_cut_at_any_byte_is_received_once(steer: Steer) -> None:
    run_async(steered_once_each(steer, lambda size: range(1, size)), deadline=120)


@pytest.mark.parametrize("read", [over_sse, over_websocket])
def test_a_half_open_link_is_noticed_by_its_silence_and_replaced(read: Read) -> None:
    async def scenario() -> None:
        talker = Talker()
        talker.gate.clear()
        quick = ServerConfig(port=0, heartbeat=0.2)
        async with (
            serving(talker, server=quick) as server,
            Proxy(server.port) as proxy,
            AsyncClient(proxy.url) as client,
        ):
            run = await client.start("hi")
            started = proxy.links[0].down
            reading = asyncio.ensure_future(read(client, run))
            await until(lambda: proxy.links[0].down > started)
            dead = len(proxy.links)
            proxy.hole = True
            talker.gate.set()
            await until(lambda: len(proxy.links) > dead)
            proxy.hole = False
            proxy.cut()
            assert await reading == await logged(server, run.id)

    run_async(scenario())


def test_a_run_that_waits_longer_than_the_patience_is_not_given_up_while_the_server_beats() -> None:
    async def scenario() -> None:
        talker = Talker()
        talker.gate.clear()
        quick = ServerConfig(port=0, heartbeat=0.05)
        async with (
            serving(talker, server=quick) as server,
            Proxy(server.port) as proxy,
            AsyncClient(proxy.url, patience=0.5) as client,
        ):
            run = await client.start("hi")
            reading = asyncio.ensure_future(over_sse(client, run))
            await until(lambda: run.state.seq)
            started = proxy.links[-1].down
            await until(lambda: proxy.links[-1].down > started + 20 * len(": hb\n"))
            proxy.cut()
            talker.gate.set()
            assert await reading == await logged(server, run.id)

    run_async(scenario())
