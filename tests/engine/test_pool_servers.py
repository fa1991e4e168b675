"""A pool over real sockets: servers that are killed, come back, refuse, or answer what is no answer."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
import pytest

from fake_upstream import CUT, FOR_EVER, Answer, Asked, FakeUpstream, Step, delta, json_answer, sse, vectors_of
from harness import run_async, until
from headrace.agent.loop import Agent
from headrace.config import EngineConfig
from headrace.engine.fallback import Fallback
from headrace.engine.openai.engine import OpenAIEngine
from headrace.engine.pool.circuit import Patience
from headrace.engine.pool.pool import EnginePool
from headrace.engine.port import Engine, ModelRequest
from headrace.engine.presets import CONTINUING
from headrace.engines import configured_engine
from headrace.errors import ConfigError, EngineError, EngineUnavailable
from headrace.events import RouteChosen, TextDelta, TextRetracted, TurnContinued
from headrace.resilience.retry import Retry
from headrace.testing.engine_contract import LONG, REQUEST, EngineContract, collect, text_of
from recording import begin

WORDS = ("One ", "two ", "three ", "four.")
QUICK = Patience(failures=2, cool_first=0.05, slow_start=0.2)


class Scene:
    """What the servers do: `held` is where each answer stands still until it is set free."""

    def __init__(self) -> None:
        self.held: asyncio.Event | None = None
        self.fault: Answer | None = None

    def answer(self, asked: Asked) -> Answer:
        if asked.path.endswith("/models"):
            return json_answer({"data": [{"id": "m", "owned_by": "vllm"}]})
        if asked.path.endswith("/embeddings"):
            return vectors_of(asked.body["input"])
        if asked.body.get("max_tokens") == 1:
            return Answer([sse(delta(content="Hi"), delta("length"), "[DONE]")])
        if self.fault is not None:
            return self.fault
        *_, last = asked.body.get("messages", [{"role": "user"}])
        said = len(last["content"].split()) if last["role"] == "assistant" else 0
        steps: list[Step] = [sse(delta(content=word)) for word in WORDS[said:]]
        usage = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 4}}
        end = sse(delta("stop"), usage, "[DONE]")
        if "story" in str(asked.body):
            return Answer([*steps[:2], FOR_EVER])
        return Answer([*steps, end] if self.held is None else [*steps[:2], self.held, *steps[2:], end])


def engines(*urls: str) -> Mapping[str, Engine]:
    return {url: OpenAIEngine(url, model="m", capabilities=CONTINUING) for url in urls}


class TestPoolOfServers(EngineContract):
    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Engine]:
        async with AsyncExitStack() as stack:
            scene = Scene()
            self.servers = [await stack.enter_async_context(FakeUpstream(choose=scene.answer)) for _ in range(2)]
            pool = EnginePool(engines(*(server.url for server in self.servers)), limit=2)
            yield await stack.enter_async_context(pool)

    async def idle(self, engine: Engine) -> None:
        await until(lambda: not any(server.open_now for server in self.servers))


@asynccontextmanager
async def two_servers(scene: Scene) -> AsyncIterator[tuple[FakeUpstream, FakeUpstream]]:
    async with FakeUpstream(choose=scene.answer) as a, FakeUpstream(choose=scene.answer) as b:
        yield a, b


async def kill(server: FakeUpstream) -> None:
    """As a SIGKILL would: every connection breaks, and nobody listens any more."""
    await server.__aexit__()


def questions(server: FakeUpstream) -> list[Asked]:
    """What it was asked, besides whether it is there and fit."""
    return [asked for asked in server.asked if asked.body.get("max_tokens", 1) != 1]


async def threads_of(pool: EnginePool, server: FakeUpstream, count: int) -> list[ModelRequest]:
    """Requests whose home this server is."""
    found: list[ModelRequest] = []
    for number in range(100):
        request = msgspec.structs.replace(REQUEST, session=f"s{number}")
        before = len(server.asked)
        await collect(pool, request)
        found += [request] * (len(server.asked) - before)
        if len(found) == count:
            return found
    raise AssertionError("too few threads have their home there")


def test_a_server_that_is_killed_in_mid_answer_is_followed_by_one_that_goes_on_with_the_sentence() -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.held = asyncio.Event()
        async with two_servers(scene) as (a, b), EnginePool(engines(a.url, b.url)) as pool:
            out, context = begin(pool, options={"max_tokens": 50})
            running = asyncio.ensure_future(Agent("a", "Be brief.", retry=Retry(first=0.0)).run(context))
            await until(lambda: len(out.of(TextDelta)) == 2)
            struck, other = (a, b) if a.open_now else (b, a)
            scene.held = None
            await kill(struck)
            assert (await running).output == "".join(WORDS)
            assert "".join(piece.text for piece in out.of(TextDelta)) == "".join(WORDS)
            assert (len(out.of(TurnContinued)), out.of(TextRetracted)) == (1, [])
            assert [asked.body["messages"][-1]["content"] for asked in questions(other)] == ["One two"]

    run_async(scenario())


def test_a_server_that_is_gone_costs_no_request_anything_and_gets_its_threads_again_when_it_is_back() -> None:
    async def scenario() -> None:
        scene = Scene()
        async with (
            two_servers(scene) as (a, b),
            EnginePool(engines(a.url, b.url), patience=QUICK) as pool,
            AsyncExitStack() as stack,
        ):
            threads = await threads_of(pool, a, 3)
            await kill(a)
            for _ in range(5):
                for request in threads:
                    assert text_of(await collect(pool, request)) == "".join(WORDS)
            assert {one.name: one.state for one in pool.standings()}[a.url] in ("open", "half_open")
            again = await stack.enter_async_context(FakeUpstream(choose=scene.answer, port=a.port))
            async with asyncio.timeout(10):
                while len(questions(again)) < 3:
                    await collect(pool, threads[0])
                    await asyncio.sleep(0.01)  # its circuit is open for so long

    run_async(scenario())


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(json_answer({"error": {"message": "no GPU"}}, status=500), id="500"),
        pytest.param(json_answer({"error": {"message": "busy"}}, status=429, **{"Retry-After": "60"}), id="429"),
        pytest.param(Answer([b"<html>bad gateway"], 502, {"Content-Type": "text/html"}), id="a proxy's page"),
        pytest.param(Answer([sse({"error": {"message": "CUDA error", "type": "InternalServerError"}})]), id="in a 200"),
        pytest.param(Answer([sse(delta(role="assistant", content="")), CUT]), id="cut before a word"),
        pytest.param(Answer([]), id="nothing"),
    ],
)
def test_a_server_that_fails_before_the_first_word_is_replaced_unseen(fault: Answer) -> None:
    async def scenario() -> None:
        failing, scene = Scene(), Scene()
        async with (
            FakeUpstream(choose=failing.answer) as a,
            FakeUpstream(choose=scene.answer) as b,
            EnginePool(engines(a.url, b.url)) as pool,
        ):
            (request,) = await threads_of(pool, a, 1)
            failing.fault = fault
            assert text_of(await collect(pool, request)) == "".join(WORDS)
            assert len(questions(a)) == 2

    run_async(scenario())


def test_a_server_that_dies_at_its_first_request_takes_no_part_and_one_alone_does_not_start() -> None:
    def dying(asked: Asked) -> Answer:
        healthy = asked.path.endswith("/models")
        return json_answer({"data": [{"id": "m", "owned_by": "vllm"}]}) if healthy else Answer([CUT])

    async def scenario() -> None:
        async with FakeUpstream(choose=dying) as bad, FakeUpstream(choose=Scene().answer) as good:
            both = EngineConfig(url=(bad.url, good.url), model="m")
            async with configured_engine(both) as engine:
                for number in range(6):
                    await collect(engine, msgspec.structs.replace(REQUEST, session=f"s{number}"))
                assert (len(questions(bad)), len(questions(good))) == (0, 6)
            with pytest.raises(EngineUnavailable, match="No model server can answer"):
                async with configured_engine(EngineConfig(url=bad.url, model="m", concurrency=4)):
                    raise AssertionError("it started")
            with pytest.raises(EngineError, match=r"broke|ended"):
                async with configured_engine(EngineConfig(url=bad.url, model="m")):
                    raise AssertionError("it started")

    run_async(scenario())


def test_a_single_server_says_a_token_at_the_start_and_one_that_is_not_up_yet_is_waited_for() -> None:
    async def scenario() -> None:
        async with FakeUpstream(choose=Scene().answer) as server:
            async with configured_engine(EngineConfig(url=server.url, model="m")):
                assert [asked.body["max_tokens"] for asked in server.asked if asked.body] == [1]
            wanted = EngineConfig(url=server.url, model="m")
        async with configured_engine(wanted) as engine:  # nobody is there now
            with pytest.raises(EngineUnavailable, match="cannot be reached"):
                await collect(engine)
            async with FakeUpstream(choose=Scene().answer, port=server.port):
                assert text_of(await collect(engine)) == "".join(WORDS)

    run_async(scenario())


def test_cancelling_in_the_line_or_in_an_answer_closes_what_is_open_and_frees_the_place() -> None:
    async def scenario() -> None:
        async with (
            FakeUpstream(choose=Scene().answer) as server,
            EnginePool(engines(server.url), limit=1) as pool,
        ):
            speaking = asyncio.ensure_future(collect(pool, LONG))
            await until(lambda: server.open_now)
            waiting = [asyncio.ensure_future(collect(pool, LONG)) for _ in range(3)]
            await until(lambda: pool.waiting == 3)
            for reader in (*waiting, speaking):
                reader.cancel()
            await asyncio.wait([speaking, *waiting])
            await until(lambda: not server.open_now)
            assert [(one.active, pool.waiting) for one in pool.standings()] == [(0, 0)]
            assert text_of(await collect(pool)) == "".join(WORDS)

    run_async(scenario())


# What the configuration makes of it


def test_one_server_is_spoken_to_directly_and_several_are_a_pool() -> None:
    def made(**settings: object) -> Engine:
        return configured_engine(msgspec.convert({"model": "m", **settings}, EngineConfig))

    assert isinstance(made(url="http://a:1/v1"), OpenAIEngine)
    for several in ("http://a:1/v1, http://b:1/v1", ["http://a:1/v1", "http://b:1/v1"]):
        assert isinstance(made(url=several), EnginePool)
    assert isinstance(made(url="http://a:1/v1", concurrency=4), EnginePool)
    assert isinstance(made(url="http://a:1/v1", fallback_url="http://b:1/v1"), Fallback)


def test_each_server_has_the_limit_that_stands_at_its_place_in_the_configuration() -> None:
    async def scenario() -> None:
        async with two_servers(Scene()) as (a, b):
            wanted = EngineConfig(url=f"{a.url},{b.url}", model="m", concurrency="2,3")
            async with configured_engine(wanted) as engine:
                assert isinstance(engine, EnginePool)
                assert {one.name: one.size for one in engine.standings()} == {a.url: 2, b.url: 3}
        with pytest.raises(ConfigError, match="3 numbers"):
            configured_engine(EngineConfig(url="http://a:1,http://b:1", model="m", concurrency=(1, 2, 3)))
        with pytest.raises(ConfigError, match="only in their passwords"):
            configured_engine(EngineConfig(url="http://x:1@a,http://x:2@a", model="m"))

    run_async(scenario())


def test_the_fallback_of_the_configuration_answers_at_once_when_no_server_of_the_first_model_is_there() -> None:
    async def scenario() -> None:
        async with FakeUpstream(choose=Scene().answer) as spare:
            wanted = EngineConfig(
                url="http://127.0.0.1:9", model="large", fallback_url=spare.url, fallback_model="small"
            )
            async with configured_engine(wanted) as chain:
                out, context = begin(chain)
                finished = await Agent("a", "Be brief.").run(context)
                assert finished.output == "".join(WORDS)
                assert out.of(RouteChosen) == [
                    RouteChosen(model="small", why="engine_unavailable", fallback_of="large")
                ]

    run_async(scenario(), deadline=10.0)
