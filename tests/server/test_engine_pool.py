"""A server with several model servers behind it, as its clients see it."""

import asyncio

import msgspec
import pytest

from fake_upstream import CUT, Answer, Asked, FakeUpstream, Step, delta, json_answer, sse
from harness import run_async, until
from headrace.agent.app import App
from headrace.agent.loop import Agent
from headrace.config import Config, EngineConfig
from headrace.errors import EngineUnavailable
from headrace.resilience.retry import Retry
from headrace.server import Server
from serving import config, read_until, running

AGENT = Agent("a", "Be brief.", retry=Retry(first=0.0))
WORDS = ("One ", "two ", "three.")


class Models:
    """What two model servers say: a sentence that stands still after its first word until `going_on` is set."""

    def __init__(self) -> None:
        self.going_on = asyncio.Event()

    def __call__(self, asked: Asked) -> Answer:
        if asked.path.endswith("/models"):
            return json_answer({"data": [{"id": "m", "owned_by": "vllm"}]})
        if asked.body.get("max_tokens") == 1:
            return Answer([sse(delta(content="Hi"), delta("length"), "[DONE]")])
        *_, last = asked.body["messages"]
        said = len(last["content"].split()) if last["role"] == "assistant" else 0
        words: list[Step] = [sse(delta(content=word)) for word in WORDS[said:]]
        return Answer([*words[:1], self.going_on, *words[1:], sse(delta("stop"), "[DONE]")])


def with_engines(*urls: str, **more: object) -> Config:
    return msgspec.structs.replace(config(), engine=msgspec.convert({"url": urls, "model": "m", **more}, EngineConfig))


def test_a_run_shows_its_place_at_the_engine_and_a_killed_model_server_only_as_a_seam() -> None:
    async def scenario() -> None:
        models = Models()
        async with (
            FakeUpstream(choose=models) as one,
            FakeUpstream(choose=models) as other,
            running(AGENT, settings=with_engines(one.url, other.url, concurrency=1)) as caller,
        ):
            held = [await caller.start("Count.") for _ in range(2)]
            await until(lambda: one.open_now and other.open_now)
            waiting = await caller.start("Count.")
            async with caller.stream(f"/v1/runs/{waiting}/events") as answer:
                await read_until(answer, b'event: run.queued\ndata: {"position":1')
            await one.__aexit__()
            models.going_on.set()
            for run in (*held, waiting):
                records = await caller.events(f"/v1/runs/{run}/events")
                assert records[-1]["event"] == "run.finished"
                said = [record["text"] for record in records if record["event"] == "text.delta"]
                assert "".join(said) == "".join(WORDS)
                assert "text.retracted" not in [record["event"] for record in records]
            assert [record["position"] for record in records if record["event"] == "run.queued"][-1] == 0
            (turn,) = [record for record in records if record["event"] == "turn.finished"]
            assert turn["timing"]["queued_ms"] > 0

    run_async(scenario())


def test_a_server_whose_model_servers_all_die_at_their_first_request_does_not_start() -> None:
    def dying(asked: Asked) -> Answer:
        return json_answer({"data": []}) if asked.path.endswith("/models") else Answer([CUT])

    async def scenario() -> None:
        async with FakeUpstream(choose=dying) as one, FakeUpstream(choose=dying) as other:
            with pytest.raises(EngineUnavailable, match="No model server can answer") as refused:
                async with Server(App(AGENT), with_engines(one.url, other.url)):
                    raise AssertionError("it started")
            assert one.url in refused.value.message
            assert other.url in refused.value.message

    run_async(scenario())


def test_a_run_that_another_model_answered_says_so() -> None:
    async def scenario() -> None:
        models = Models()
        models.going_on.set()
        async with FakeUpstream(choose=models) as spare:
            wanted = with_engines("http://127.0.0.1:9", fallback_url=spare.url, fallback_model="spare")
            async with running(AGENT, settings=wanted) as caller:
                state = await caller.finished("Count.")
                assert state["output"] == "".join(WORDS)
                (route,) = state["routes"]
                assert (route["model"], route["fallback_of"], route["why"]) == ("spare", "m", "engine_unavailable")

    run_async(scenario())
