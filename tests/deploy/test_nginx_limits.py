"""What nginx refuses, and that its refusals look like those of Headrace."""

import contextlib
import io
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from fake_instance import FakeInstance, response
from harness import run_async
from headrace.config import LimitsConfig
from nginx import Nginx
from serving import Caller, FunctionAgent, count, running

COUNT = FunctionAgent(count)
NARROW = {"rate=20r/s": "rate=1r/m", "burst=40 nodelay": "burst=4 nodelay"}
START = "/v1/runs"


async def _post(http: aiohttp.ClientSession, url: str, **headers: str) -> tuple[int, dict[str, str], Any]:
    async with http.post(url, data=b'{"input":"1"}', headers=headers) as answer:
        raw = await answer.read()
        return answer.status, dict(answer.headers), msgspec.json.decode(raw)


def test_who_asks_too_often_is_told_when_to_ask_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(COUNT) as instance, Nginx(tmp_path, [instance.server.port], NARROW) as nginx:
            answers = [await _post(instance.http, nginx.url + START) for _ in range(6)]
            assert [status for status, _, _ in answers] == [202] * 5 + [429]
            _, headers, problem = answers[-1]
            assert (headers["Content-Type"], headers["Retry-After"]) == ("application/problem+json", "1")
            assert problem["code"] == "too_many_requests"
            assert (problem["status"], problem["retryable"]) == (429, True)
            assert problem["type"] == "urn:headrace:problem:too_many_requests"

    run_async(scenario())


def test_with_a_key_a_request_counts_once_and_is_refused_all_the_same(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(COUNT) as instance, Nginx(tmp_path, [instance.server.port], NARROW) as nginx:
            keyed = {"Idempotency-Key": "k"}
            statuses = [(await _post(instance.http, nginx.url + START, **keyed))[0] for _ in range(6)]
            assert statuses == [202] * 5 + [429]

    run_async(scenario())


def test_reading_and_cancelling_are_never_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(COUNT) as instance, Nginx(tmp_path, [instance.server.port], NARROW) as nginx:
            front = Caller(nginx, instance.http)  # type: ignore[arg-type]
            run_id = await front.start("1")
            for _ in range(20):
                assert (await front.post(f"/v1/runs/{run_id}/cancel"))[0] in (200, 202)
                assert (await front.get(f"/v1/runs/{run_id}"))[0] == 200
                assert (await front.get("/v1/runs"))[0] == 200
                assert await front.events(f"/v1/runs/{run_id}/events")

    run_async(scenario())


def test_a_key_is_limited_wherever_it_is_used_from(tmp_path: Path) -> None:
    async def scenario() -> None:
        narrow = {"rate=50r/s": "rate=1r/m", "burst=100 nodelay": "burst=2 nodelay"}
        async with running(COUNT) as instance, Nginx(tmp_path, [instance.server.port], narrow) as nginx:
            one, other = {"Authorization": "Bearer one"}, {"Authorization": "Bearer other"}
            statuses = [(await _post(instance.http, nginx.url + START, **one))[0] for _ in range(4)]
            assert statuses == [202, 202, 202, 429]
            assert (await _post(instance.http, nginx.url + START, **other))[0] == 202

    run_async(scenario())


def test_an_address_holds_no_more_streams_than_it_may(tmp_path: Path) -> None:
    async def scenario() -> None:
        few = {"limit_conn headrace_streams 500;": "limit_conn headrace_streams 2;"}
        async with running(COUNT) as instance, Nginx(tmp_path, [instance.server.port], few) as nginx:
            http = instance.http
            async with contextlib.AsyncExitStack() as stack:
                for _ in range(2):
                    await stack.enter_async_context(http.ws_connect(f"{nginx.url}/ws"))
                async with http.get(f"{nginx.url}/v1/agents") as answer:
                    assert (answer.status, answer.content_type) == (429, "application/problem+json")
            while True:  # nginx hears that they have gone when it does
                async with http.get(f"{nginx.url}/v1/agents") as answer:
                    if answer.status == 200:
                        break

    run_async(scenario())


def test_a_body_that_is_too_large_is_refused_before_an_instance_hears_of_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            FakeInstance(response(202)) as instance,
            Nginx(tmp_path, [instance.port]) as nginx,
            aiohttp.ClientSession() as http,
        ):
            for path in (START, "/v1/chat/completions", "/v1/threads"):
                async with http.post(nginx.url + path, data=io.BytesIO(b"x" * 10_000_000)) as answer:
                    assert (answer.status, answer.content_type) == (413, "application/problem+json")
                    problem = msgspec.json.decode(await answer.read())
                    assert (problem["code"], problem["retryable"]) == ("payload_too_large", False)
            assert instance.asked == []
            async with http.post(nginx.url + START, data=io.BytesIO(b"x" * LimitsConfig().body_bytes)) as answer:
                assert answer.status == 202

    run_async(scenario())
