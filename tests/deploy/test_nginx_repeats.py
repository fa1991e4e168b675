"""What nginx asks a second instance after the first one failed, and what it must not."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest

from fake_instance import SILENCE, FakeInstance, response
from harness import run_async, until
from headrace.client import AsyncClient
from nginx import Nginx, free_ports
from serving import FunctionAgent, config, count, running

COUNT = FunctionAgent(count)
START, CANCEL, STEER = "/v1/runs", "/v1/runs/R/cancel", "/v1/runs/R/steer"
CHAT, INPUT, EVENTS = "/v1/chat/completions", "/v1/runs/R/inputs/I", "/v1/runs/R/events"
KEYED = {"idempotency-key": "k"}


@contextlib.asynccontextmanager
async def two(folder: Path, first: bytes | None, second: bytes | None) -> AsyncIterator["Pair"]:
    """Two instances that do so with every request, behind nginx."""
    async with (
        FakeInstance(first) as one,
        FakeInstance(second) as other,
        Nginx(folder, [one.port, other.port]) as nginx,
        aiohttp.ClientSession() as http,
    ):
        yield Pair(one, other, nginx, http)


class Pair:
    def __init__(self, one: FakeInstance, other: FakeInstance, nginx: Nginx, http: aiohttp.ClientSession) -> None:
        self.instances = (one, other)
        self.nginx = nginx
        self._http = http

    @property
    def asked(self) -> int:
        """How many requests have reached an instance."""
        return sum(len(instance.asked) for instance in self.instances)

    async def ask(self, method: str, path: str, **headers: str) -> tuple[int, aiohttp.ClientResponse, bytes]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self._http.request(method, self.nginx.url + path, data=b"{}", headers=named) as answer:
            return answer.status, answer, await answer.read()


def test_with_one_instance_down_nobody_notices(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            running(COUNT) as instance,
            Nginx(tmp_path, [*free_ports(1), instance.server.port]) as nginx,
            aiohttp.ClientSession() as http,
        ):
            for number in range(20):
                async with http.post(f"{nginx.url}/v1/runs", json={"input": str(number)}) as answer:
                    assert answer.status == 202
        assert " 502, 202 " in nginx.log()  # the log says which instance was asked first

    run_async(scenario())


@pytest.mark.parametrize(
    ("method", "path", "headers", "times"),
    [
        ("GET", "/v1/runs/R", {}, 2),
        ("GET", EVENTS, {}, 2),
        ("POST", START, {}, 1),
        ("POST", START, KEYED, 2),
        ("POST", CHAT, {}, 1),
        ("POST", CHAT, KEYED, 2),
        ("POST", STEER, {}, 1),
        ("POST", STEER, KEYED, 2),
        ("POST", CANCEL, {}, 2),
        ("POST", INPUT, {}, 2),
        ("POST", "/v1/responses/R/cancel", {}, 2),
    ],
)
def test_an_instance_that_dies_over_a_request_is_asked_for_again_only_where_that_is_safe(
    tmp_path: Path, method: str, path: str, headers: dict[str, str], times: int
) -> None:
    """Both instances cut the connection once they have the request: whoever reads `times` knows how often it ran."""

    async def scenario() -> None:
        async with two(tmp_path, None, None) as pair:
            status, answer, body = await pair.ask(method, path, **headers)
            assert pair.asked == times
            assert (status, answer.headers["retry-after"]) == (502, "1")
            assert answer.content_type == "application/problem+json"
            problem = msgspec.json.decode(body)
            assert (problem["code"], problem["status"], problem["retryable"]) == ("unavailable", 502, True)

    run_async(scenario())


@pytest.mark.parametrize(("headers", "asked_at_most"), [({}, 20), (KEYED, 2)])
def test_an_instance_that_leaves_sends_a_start_to_the_other(
    tmp_path: Path, headers: dict[str, str], asked_at_most: int
) -> None:
    """It answers 503, and nobody sees that. After a start with a key nginx leaves it alone for a while."""

    async def scenario() -> None:
        async with two(tmp_path, response(503), response(202)) as pair:
            for _ in range(10):
                status, _, _ = await pair.ask("POST", START, **headers)
                assert status == 202
            leaving, staying = pair.instances
            assert 1 <= len(leaving.asked) <= asked_at_most
            assert len(staying.asked) == 10

    run_async(scenario())


def test_a_start_keeps_its_body_and_headers_on_the_way_to_the_second_instance(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two(tmp_path, response(503), response(202)) as pair:
            for _ in range(2):
                await pair.ask(
                    "POST", f"{START}?chunk=token", **KEYED, authorization="Bearer x", x_forwarded_for="1.2.3.4"
                )
            for asked in [asked for instance in pair.instances for asked in instance.asked]:
                assert asked.line == "POST /v1/runs?chunk=token HTTP/1.1"
                assert asked.body == b"{}"
                assert asked.headers["idempotency-key"] == "k"
                assert asked.headers["authorization"] == "Bearer x"
                assert asked.headers["x-forwarded-for"] == "127.0.0.1"  # not what the client says of itself
                assert asked.headers["x-forwarded-proto"] == "http"

    run_async(scenario())


def test_when_every_instance_refuses_to_start_the_client_hears_it_from_them_and_then_from_nginx(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two(tmp_path, response(503, '"ours"'), response(503, '"ours"')) as pair:
            status, _, body = await pair.ask("POST", START)
            assert (status, body) == (503, b'"ours"')
            status, answer, body = await pair.ask("POST", START)  # both have been given up for two seconds
            assert (status, answer.headers["retry-after"]) == (502, "1")
            assert msgspec.json.decode(body)["code"] == "unavailable"

    run_async(scenario())


def test_an_openai_run_that_ended_with_503_is_not_run_again_behind_its_client_s_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two(tmp_path, response(503, '{"error":{}}'), response(503, '{"error":{}}')) as pair:
            status, _, body = await pair.ask("POST", CHAT)
            assert (status, body, pair.asked) == (503, b'{"error":{}}', 1)

    run_async(scenario())


@pytest.mark.parametrize("status", [400, 404, 409, 422, 429, 500, 502, 504])
def test_an_answer_of_an_instance_is_passed_on_as_it_is(tmp_path: Path, status: int) -> None:
    async def scenario() -> None:
        async with two(tmp_path, response(status, '"ours"'), response(status, '"ours"')) as pair:
            for path, headers in ((CHAT, {}), (CHAT, KEYED), (CANCEL, {}), ("/v1/threads", {})):
                assert (await pair.ask("POST", path, **headers))[::2] == (status, b'"ours"')
            assert pair.asked == 4

    run_async(scenario())


def test_a_cancel_does_not_wait_for_a_frozen_instance(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            FakeInstance(SILENCE) as frozen,
            FakeInstance(response(202)) as well,
            Nginx(tmp_path, [frozen.port, well.port], {"proxy_read_timeout 5s;": "proxy_read_timeout 200ms;"}) as nginx,
            aiohttp.ClientSession() as http,
        ):
            for _ in range(4):
                async with http.post(nginx.url + CANCEL) as answer:
                    assert answer.status == 202
            assert len(frozen.asked) == 1  # then it was given up for a while

    run_async(scenario())


@pytest.mark.parametrize("answer", [None, response(503)])
def test_an_event_source_is_told_to_come_back_and_everybody_else_why(tmp_path: Path, answer: bytes | None) -> None:
    """After any status but 200 a browser's EventSource never comes back."""

    async def scenario() -> None:
        async with two(tmp_path, answer, answer) as pair:
            status, _, body = await pair.ask("GET", EVENTS)
            assert (status, msgspec.json.decode(body)["status"]) == (502, 502)
            status, to_browser, body = await pair.ask("GET", EVENTS, sec_fetch_mode="cors")
            assert (status, to_browser.content_type) == (200, "text/event-stream")
            assert body == b": no instance answered\nretry: 1000\n\n"

    run_async(scenario())


def test_our_client_waits_until_an_instance_is_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        (port,) = free_ports(1)
        async with Nginx(tmp_path, [port]) as nginx, AsyncClient(nginx.url) as client:
            starting = asyncio.create_task(client.start("3"))
            await until(lambda: " 502 " in nginx.log())
            async with running(COUNT, settings=config(server={"port": port})):
                run = await starting
                assert (await run.result()).output == "w0 w1 w2 "

    run_async(scenario())
