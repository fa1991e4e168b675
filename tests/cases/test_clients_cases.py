"""Cases of clients (README.md of this folder) that the server or the Python client must get right."""

import asyncio
from typing import Any

import pytest

from harness import run_async, until
from headrace.agent.port import RunContext
from headrace.client import AsyncClient, Run
from headrace.config import AuthConfig
from headrace.errors import EngineRejected
from headrace.events import RunFinished, TextDelta
from proxy import Proxy
from serving import FunctionAgent, Gate, config, count, running

COUNT = FunctionAgent(count)

ROUTES = [
    "/v1/runs",
    "/v1/runs/x",
    "/v1/runs/x/events",
    "/v1/runs/x/cancel",
    "/v1/runs/x/steer",
    "/v1/runs/x/inputs/i",
    "/v1/threads",
    "/v1/threads/t/runs",
    "/v1/agents",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/responses/resp_x/cancel",
    "/v1/models",
]


@pytest.mark.parametrize("path", ROUTES)
def test_a_browsers_preflight_is_answered_for_every_route_also_where_a_key_is_needed(path: str) -> None:
    async def scenario() -> None:
        origin = "https://app.example"
        settings = config(server={"cors_origins": (origin,)}, auth=AuthConfig(keys={"ann": "key-a"}))
        async with running(COUNT, settings=settings) as caller:
            asks = {"origin": origin, "access-control-request-method": "POST"}
            async with caller.http.options(caller.server.url + path, headers=asks) as answer:
                assert answer.status == 204
                assert answer.headers["access-control-allow-origin"] == origin
                allowed = answer.headers["access-control-allow-headers"]
                for name in ("authorization", "last-event-id", "idempotency-key", "content-type"):
                    assert name in allowed
            async with caller.http.get(caller.server.url + path, headers={"origin": origin}) as answer:
                assert answer.status in (401, 405)
                assert answer.headers["access-control-allow-origin"] == origin  # so that the page can read the error

    run_async(scenario())


def test_a_failed_run_is_a_failure_to_the_client_with_the_servers_words() -> None:
    async def scenario() -> None:
        async def failing(context: RunContext) -> RunFinished:
            context.emit(TextDelta(text="half"))
            raise EngineRejected("The model wants no more.", hint="Ask another one.")

        async with running(FunctionAgent(failing)) as caller, AsyncClient(caller.server.url) as client:
            state = await (await client.start("x")).result()
            assert state.status == "failed"
            assert state.error is not None
            assert (state.error.code, state.error.message) == ("engine_rejected", "The model wants no more.")
            assert state.error.hint == "Ask another one."

    run_async(scenario())


def test_a_lost_connection_and_a_stop_are_two_things() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with (
            running(FunctionAgent(gate)) as caller,
            Proxy(caller.server.port) as proxy,
            AsyncClient(proxy.url) as client,
        ):
            run = await client.start("x")
            reading = asyncio.create_task(read_to_the_end(run))
            await until(lambda: run.state.seq == 2)
            links = len(proxy.links)
            proxy.cut()
            await until(lambda: len(proxy.links) > links and proxy.links[-1].down)
            assert not gate.cancelled
            await run.cancel("enough")
            await reading
            state = run.state
            assert (state.status, state.cancel_requested, gate.cancelled) == ("cancelled", True, True)

    run_async(scenario())


async def read_to_the_end(run: Run) -> None:
    async for _ in run.events():
        pass


def test_over_a_socket_that_broke_during_a_long_step_its_end_arrives_all_the_same() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with (
            running(FunctionAgent(gate)) as caller,
            Proxy(caller.server.port) as proxy,
            AsyncClient(proxy.url) as client,
            client.connect() as socket,
        ):
            run = await socket.start("x")
            reading = asyncio.create_task(run.result())
            await until(lambda: run.state.seq == 2)
            proxy.refusing = True
            proxy.cut()
            gate.open.set()
            await until(lambda: not caller.server.supervisor.active)  # the step ends while nobody is connected
            proxy.refusing = False
            state: Any = await reading
            assert (state.status, state.text) == ("completed", "before after")

    run_async(scenario())
