"""Waiting for something on behalf of a client that may leave."""

import asyncio

import pytest

from headrace.errors import LogUnavailable
from headrace.http.exchange import Exchange
from headrace.http.outlet import Message
from headrace.http.waiting import before_the_client_leaves
from virtual_time import run_virtually


def exchange_whose_client_leaves(after: float) -> Exchange:
    async def receive() -> Message:
        await asyncio.sleep(after)
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        raise AssertionError(f"nobody answers here, and it sent {message}")

    return Exchange(scope={}, receive=receive, send=send, max_body=0)


@pytest.mark.parametrize(
    ("work", "client", "within", "ends", "at"),
    [
        (1.0, 2.0, None, True, 1.0),
        (2.0, 1.0, None, False, 1.0),
        (3.0, 2.0, 1.0, False, 1.0),
        (1.0, 2.0, 3.0, True, 1.0),
    ],
)
def test_it_says_whether_the_work_ended_first_and_leaves_nothing_behind(
    work: float, client: float, within: float | None, ends: bool, at: float
) -> None:
    async def scenario() -> None:
        exchange = exchange_whose_client_leaves(client)
        assert await before_the_client_leaves(exchange, asyncio.sleep(work), within=within) is ends
        assert asyncio.get_running_loop().time() == at
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtually(scenario())


def test_what_the_work_fails_with_is_raised_as_it_is() -> None:
    async def fails() -> None:
        raise LogUnavailable("The disk is full.")

    async def scenario() -> None:
        with pytest.raises(LogUnavailable):
            await before_the_client_leaves(exchange_whose_client_leaves(1.0), fails())

    run_virtually(scenario())
