"""Several server processes on one Redis: any of them serves any run, and when one goes the others go on."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from fake_upstream import FOR_EVER, Answer, Asked, FakeUpstream, delta, json_answer, sse
from harness import run_async, until
from headrace.events import TERMINALS, Record, RunFinished, RunRecovered, RunReleased, TextDelta, TextRetracted
from headrace.state import RunState, fold, initial
from headrace.wire.codec import decode_record
from instances_app import WORDS
from redis_server import RedisServer
from serving import named, read_until

TESTS = Path(__file__).parents[1]
LEASE_S = 1.0
SLACK_S = 5.0
"""A takeover is promised within the lease and a second more; two busy cores may need longer to be seen doing it."""


class Instance:
    """A server process for an app of instances_app.py. `environment` is what it is configured by."""

    def __init__(self, app: str, environment: dict[str, str]) -> None:
        self._app = app
        self._environment = environment
        self.url = ""

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headrace.cli", "serve", f"instances_app:{self._app}"),
            cwd=TESTS,
            env={**os.environ, **self._environment},
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()  # empty if it has gone before it serves
        self.url = line.decode().split()[-1] if line else ""

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def gone(self) -> int:
        return await self._process.wait()

    async def end(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.communicate()


class Instances:
    """`async with Instances(…) as both`: some processes on one Redis, which a test talks to, kills and starts again."""

    def __init__(self, folder: Path, redis_url: str, prefix: str, *, app: str = "app", **environment: str) -> None:
        self.ledger = folder / "ledger"
        self._environment = {
            "LEDGER": str(self.ledger),
            "HEADRACE_LOG__URL": redis_url,
            "HEADRACE_LOG__PREFIX": prefix,
            "HEADRACE_LOG__LEASE": str(LEASE_S),
            "HEADRACE_SERVER__PORT": "0",
            "HEADRACE_SERVER__DRAIN_GRACE": "0.3",
            **environment,
        }
        self._app = app
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> tuple[Instance, ...]:
        self.http = await self._stack.enter_async_context(aiohttp.ClientSession())
        return tuple(await asyncio.gather(*(self.another() for _ in range(2))))

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def another(self) -> Instance:
        instance = Instance(self._app, self._environment)
        await instance.start()
        self._stack.push_async_callback(instance.end)
        return instance

    def executions(self) -> list[str]:
        return self.ledger.read_text().splitlines() if self.ledger.exists() else []

    async def post(self, instance: Instance, path: str, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
        data = msgspec.json.encode(body)
        async with self.http.post(instance.url + path, data=data, headers=named(headers)) as answer:
            return answer.status, msgspec.json.decode(await answer.read())

    async def start(self, instance: Instance, agent: str, question: str = "x") -> str:
        status, run = await self.post(instance, "/v1/runs", {"agent": agent, "input": question})
        assert status == 202, run
        run_id = run["run_id"]
        assert isinstance(run_id, str)
        return run_id

    @contextlib.asynccontextmanager
    async def stream(self, instance: Instance, run_id: str, after: int = 0) -> AsyncIterator[aiohttp.ClientResponse]:
        url = f"{instance.url}/v1/runs/{run_id}/events?chunk=token&after={after}"
        async with self.http.get(url) as answer:
            assert answer.status == 200, await answer.text()
            yield answer

    async def follow(self, instance: Instance, run_id: str, after: int = 0) -> "Followed":
        """Follow to the end, at one instance, without ever coming back."""
        async with self.stream(instance, run_id, after) as answer:
            followed = Followed(run_id)
            async for piece in answer.content.iter_any():
                followed.take(piece)
        return followed


class Followed:
    """What a client was sent of a run, and when."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.records: list[Record] = []
        self.times: list[float] = []
        self._rest = b""

    def take(self, piece: bytes) -> None:
        *frames, self._rest = (self._rest + piece).split(b"\n\n")
        for frame in frames:
            lines = [line for line in frame.split(b"\n") if line and not line.startswith((b":", b"retry:"))]
            if lines:
                self.records.append(decode_record(self.run_id, b"\n".join(lines) + b"\n\n"))
                self.times.append(asyncio.get_running_loop().time())

    @property
    def ended(self) -> bool:
        return bool(self.records) and isinstance(self.records[-1].event, TERMINALS)

    @property
    def state(self) -> RunState:
        return fold(self.records, initial(self.run_id))

    @property
    def recoveries(self) -> int:
        return sum(isinstance(record.event, RunRecovered) for record in self.records)


def shown(records: Sequence[Record]) -> str:
    """The text as a client shows it."""
    text = ""
    for record in records:
        if isinstance(record.event, TextDelta):
            text += record.event.text
        elif isinstance(record.event, TextRetracted):
            text = ""
    return text


def assert_whole(records: Sequence[Record]) -> None:
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    assert [isinstance(record.event, TERMINALS) for record in records] == [False] * (len(records) - 1) + [True]


@pytest.fixture
def instances(tmp_path: Path, redis_url: str, redis_prefix: str) -> Instances:
    return Instances(tmp_path, redis_url, redis_prefix)


def test_a_server_killed_in_mid_sentence_loses_nothing_for_a_client_at_another(instances: Instances) -> None:
    async def scenario() -> None:
        async with instances as (killed, other):
            run_id = await instances.start(killed, "mailer")
            following = asyncio.create_task(instances.follow(other, run_id))
            async with instances.stream(killed, run_id) as answer:
                await read_until(answer, WORDS[20].encode())
                killed.send(signal.SIGKILL)
                died = asyncio.get_running_loop().time()
                await killed.gone()
            followed = await following
        assert_whole(followed.records)
        last = followed.records[-1].event
        assert isinstance(last, RunFinished)
        assert last.output == "".join(WORDS)
        assert shown(followed.records).endswith(last.output)
        assert followed.recoveries == 1
        at = next(i for i, record in enumerate(followed.records) if isinstance(record.event, RunRecovered))
        assert followed.times[at] - died < LEASE_S + 1 + SLACK_S
        assert instances.executions() == [call.call_id for call in followed.state.tool_calls]

    run_async(scenario(), deadline=60)


def test_a_run_is_cancelled_steered_and_answered_from_an_instance_that_does_not_work_on_it(
    instances: Instances,
) -> None:
    async def scenario() -> None:
        async with instances as (worker, other):
            cancelled, steered = [await instances.start(worker, "waiting") for _ in range(2)]
            asked = await instances.start(worker, "asking")
            for run_id, marker in ((cancelled, b"Hello"), (steered, b"Hello"), (asked, b"input.requested")):
                async with instances.stream(other, run_id) as answer:
                    await read_until(answer, marker)
            status, _ = await instances.post(other, f"/v1/runs/{cancelled}/cancel", {})
            assert status in (202, 200)  # 200 if it has ended by then
            steer = {"text": "In French.", "mode": "interrupt"}
            status, _ = await instances.post(other, f"/v1/runs/{steered}/steer", steer)
            assert status == 202
            async with instances.http.get(f"{other.url}/v1/runs/{asked}") as answer:
                (wanted,) = msgspec.json.decode(await answer.read())["state"]["inputs"]
            status, _ = await instances.post(other, f"/v1/runs/{asked}/inputs/{wanted['input_id']}", {"value": True})
            assert status == 202
            ends = [await instances.follow(other, run_id) for run_id in (cancelled, steered, asked)]
            assert [run.state.status for run in ends] == ["cancelled", "completed", "completed"]
            assert ends[0].state.output == "Hello"
            assert ends[1].state.output == "Bonjour."
            assert ends[2].state.output == "x is gone"
            assert instances.executions() == ["x"]
            assert sum(run.recoveries for run in ends) == 0

    run_async(scenario(), deadline=60)


def test_a_cancel_at_another_instance_closes_the_connection_to_the_model_server(
    tmp_path: Path, redis_url: str, redis_prefix: str
) -> None:
    answers: list[str] = []

    def choose(asked: Asked) -> Answer:
        if not asked.path.endswith("/chat/completions"):
            return json_answer({}, 404)
        if asked.body.get("max_tokens") == 1:  # whether it can say a token at all
            return Answer([sse(delta(content="H"), delta("length"), "[DONE]")])
        answers.append(asked.path)
        return Answer([sse(delta(content="Once ")), FOR_EVER])

    async def scenario() -> None:
        async with FakeUpstream(choose=choose) as model:
            instances = Instances(tmp_path, redis_url, redis_prefix, app="upstream", HEADRACE_ENGINE__URL=model.url)
            async with instances as (worker, other):
                run_id = await instances.start(worker, "upstream")
                async with instances.stream(other, run_id) as answer:
                    await read_until(answer, b"Once")
                    assert model.open_now == 1
                    loop = asyncio.get_running_loop()
                    asked = loop.time()
                    await instances.post(other, f"/v1/runs/{run_id}/cancel", {})
                    await until(lambda: model.open_now == 0)
                    assert loop.time() - asked < 0.25 + SLACK_S
                    await read_until(answer, b"run.finished")
            assert (len(answers), model.left) == (1, 1)

    run_async(scenario(), deadline=60)


def test_a_run_that_has_killed_three_servers_is_not_tried_by_a_fourth(instances: Instances) -> None:
    async def scenario() -> None:
        async with instances as (first, second):
            with contextlib.suppress(aiohttp.ClientError):  # it dies with its answer half given
                await instances.start(first, "crashing")
            await first.gone()
            await second.gone()
            third = await instances.another()
            await third.gone()
            fourth = await instances.another()
            async with instances.http.get(f"{fourth.url}/v1/runs") as answer:
                (run,) = msgspec.json.decode(await answer.read())["runs"]
            followed = await instances.follow(fourth, run["run_id"])
        assert_whole(followed.records)
        assert followed.state.error is not None
        assert followed.state.error.code == "poison"
        assert instances.executions() == ["crash"] * 3

    run_async(scenario(), deadline=60)


def test_a_reader_that_comes_to_an_instance_nobody_read_at_any_more_begins_at_its_own_cursor(
    instances: Instances,
) -> None:
    async def scenario() -> None:
        async with instances as (worker, other):
            run_id = await instances.start(worker, "mailer")
            async with instances.stream(other, run_id) as answer:
                await read_until(answer, WORDS[5].encode())
            async with instances.stream(worker, run_id) as answer:  # the run goes on while nobody reads at the other
                await read_until(answer, WORDS[25].encode())
            late, early = await asyncio.gather(
                instances.follow(other, run_id, after=20), instances.follow(other, run_id, after=0)
            )
            assert_whole(early.records)
            assert late.records == early.records[20:]

    run_async(scenario(), deadline=60)


def test_a_server_that_was_frozen_for_longer_than_its_lease_cannot_write_to_what_others_went_on_with(
    instances: Instances,
) -> None:
    async def scenario() -> None:
        async with instances as (frozen, other):
            run_id = await instances.start(frozen, "mailer")
            following = asyncio.create_task(instances.follow(other, run_id))
            async with instances.stream(frozen, run_id) as answer:
                await read_until(answer, WORDS[20].encode())
            frozen.send(signal.SIGSTOP)
            async with instances.stream(other, run_id) as answer:
                await read_until(answer, b"run.recovered")
            frozen.send(signal.SIGCONT)
            followed = await following
            assert_whole(followed.records)
            assert followed.state.output == "".join(WORDS)
            assert followed.recoveries == 1
            again = await instances.follow(frozen, run_id)
            assert again.records == followed.records
            new = await instances.follow(frozen, await instances.start(frozen, "mailer"))
            assert new.state.status == "completed"

    run_async(scenario(), deadline=60)


def test_while_redis_is_down_runs_wait_new_ones_are_refused_and_afterwards_all_go_on(
    tmp_path: Path, own_redis: RedisServer, redis_prefix: str
) -> None:
    async def scenario() -> None:
        instances = Instances(tmp_path, own_redis.url, redis_prefix)
        async with instances as (worker, other):
            run_id = await instances.start(worker, "mailer")
            following = [asyncio.create_task(instances.follow(at, run_id)) for at in (worker, other)]
            async with instances.stream(other, run_id) as answer:
                await read_until(answer, WORDS[10].encode())
                own_redis.kill()
            for instance in (worker, other):
                body = msgspec.json.encode({"agent": "mailer", "input": "x"})
                async with instances.http.post(f"{instance.url}/v1/runs", data=body) as answer:
                    assert (answer.status, (await answer.json())["code"]) == (503, "log_unavailable")
                    assert int(answer.headers["retry-after"]) > 0
                async with instances.http.get(f"{instance.url}/readyz") as answer:
                    assert (answer.status, "log" in await answer.text()) == (503, True)
            await asyncio.to_thread(own_redis.start)
            for followed in await asyncio.gather(*following):
                assert_whole(followed.records)
                assert followed.state.output == "".join(WORDS)
                assert shown(followed.records).endswith(followed.state.output)
            assert len(instances.executions()) == 1
            new = await instances.follow(other, await start_at_last(instances, worker))
            assert new.state.status == "completed"

    run_async(scenario(), deadline=90)


async def start_at_last(instances: Instances, instance: Instance) -> str:
    """As a client does that is told to come back."""
    while True:
        status, run = await instances.post(instance, "/v1/runs", {"agent": "mailer", "input": "x"})
        if status == 202:
            run_id: str = run["run_id"]
            return run_id
        assert status == 503


async def use(instances: Instances, places: list[Instance], question: str) -> list[Record]:
    """A client of a load balancer: it goes to the next instance when one is gone or says that it is leaving."""
    followed: Followed | None = None
    turn = 0
    while followed is None or not followed.ended:
        turn += 1
        instance = places[turn % len(places)]
        with contextlib.suppress(aiohttp.ClientConnectionError, aiohttp.ClientPayloadError):
            if followed is None:
                body = {"agent": "mailer", "input": question}
                status, run = await instances.post(instance, "/v1/runs", body, idempotency_key=question)
                if status == 202:
                    followed = Followed(run["run_id"])
                else:
                    assert (status, run["code"]) == (503, "draining")
            else:
                async with instances.stream(instance, followed.run_id, len(followed.records)) as answer:
                    async for piece in answer.content.iter_any():
                        followed.take(piece)
                followed = cut(followed)
    return followed.records


def cut(followed: Followed) -> Followed:
    """What came of a frame whose rest did not is nothing."""
    followed.take(b"")
    whole = Followed(followed.run_id)
    whole.records, whole.times = followed.records, followed.times
    return whole


def test_a_rolling_restart_under_load_shows_no_error_in_a_client_and_runs_no_tool_twice(instances: Instances) -> None:
    async def scenario() -> None:
        async with instances as both:
            places = list(both)
            cut_short: list[str] = []
            async with asyncio.TaskGroup() as group:
                users = [group.create_task(use(instances, places, f"q{n}")) for n in range(12)]
                for at, old in enumerate(both):
                    new = await instances.another()
                    cut_short.append(await instances.start(old, "mailer"))
                    async with instances.stream(old, cut_short[-1]) as answer:
                        await read_until(answer, WORDS[1].encode())  # it is in the middle of something
                    places[at] = new
                    old.send(signal.SIGTERM)
                    assert await old.gone() == 0
            for run_id in cut_short:
                followed = await instances.follow(places[0], run_id)
                assert_whole(followed.records)
                assert followed.state.output == "".join(WORDS)
                assert any(isinstance(record.event, RunReleased) for record in followed.records)
                assert followed.recoveries >= 1
            for user in users:
                records = user.result()
                assert_whole(records)
                last = records[-1].event
                assert isinstance(last, RunFinished)
                assert last.output == "".join(WORDS)
                assert shown(records).endswith(last.output)
            executed = instances.executions()
            assert len(executed) == len(set(executed)) == 14

    run_async(scenario(), deadline=90)
