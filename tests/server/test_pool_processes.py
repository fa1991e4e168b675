"""A server with two real model processes behind it, which it knows by their addresses: llama.cpp with SmolLM2."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest

from harness import run_async
from headrace.agent.app import App
from headrace.agent.loop import Agent
from headrace.config import AuthConfig
from headrace.engine import models
from headrace.engine.answer.stream import AnswerStream
from headrace.engine.llamacpp.engine import LlamaCppEngine
from headrace.engine.openai.engine import OpenAIEngine
from headrace.engine.pool.pool import EnginePool
from headrace.engine.port import ModelRequest
from headrace.resilience.retry import Retry
from headrace.server import Server
from serving import Caller, config, read_until

pytestmark = pytest.mark.model

AUTH = AuthConfig(keys={"ann": "key-a"}, operators=("ann",))
SLOTS = 4
STORY = "Write a long story about a river and the people who live beside it."
FACTS = [f"Fact {number}: house {number} has {number + 2} windows and a red door." for number in range(15)]


class Replica(OpenAIEngine):
    """The engine for one of the processes, which counts what it is asked, besides the token that proves it fit."""

    asked = 0

    def answer(self, request: ModelRequest) -> AnswerStream:
        self.asked += request.max_tokens != 1
        return super().answer(request)


class Scene:
    """`processes` and `replicas` by the processes' addresses."""

    def __init__(self, caller: Caller, processes: dict[str, LlamaCppEngine], replicas: dict[str, Replica]) -> None:
        self.caller = caller
        self.processes = processes
        self.replicas = replicas

    async def answered(self, question: str, thread: str, *, tokens: int = 4) -> dict[str, Any]:
        """The state of a run that has ended."""
        options = {"max_tokens": tokens, "temperature": 0.0}
        body = {"input": question, "thread_id": thread, "options": options}
        status, run = await self.caller.post("/v1/runs", body, prefer="wait=120")
        assert (status, run["state"]["status"]) == (200, "completed"), run
        state: dict[str, Any] = run["state"]
        return state

    async def begun(self, thread: str) -> tuple[str, str]:
        """A run that tells a story and has said its first words; and the address of the one who tells it."""
        run = await self.caller.start(STORY, thread_id=thread, options={"max_tokens": 200, "temperature": 0.0})
        async with self.caller.stream(f"/v1/runs/{run}/events") as answer:
            await read_until(answer, b"event: text.delta")
        (at,) = [name for name, row in (await self.standings()).items() if row["active"]]
        return run, at

    async def standings(self) -> dict[str, dict[str, Any]]:
        status, listed = await self.caller.get("/v1/replicas")
        assert status == 200, listed
        return {row["name"]: row for row in listed["replicas"]}

    async def records(self, run: str) -> list[dict[str, Any]]:
        records = await self.caller.events(f"/v1/runs/{run}/events")
        assert (records[-1]["event"], records[-1]["status"]) == ("run.finished", "completed")
        return records

    def counts(self) -> dict[str, int]:
        return {name: replica.asked for name, replica in self.replicas.items()}


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    weights = models.install("smollm2")
    async with AsyncExitStack() as stack:
        processes: dict[str, LlamaCppEngine] = {}
        replicas: dict[str, Replica] = {}
        for _ in range(2):
            engine = await stack.enter_async_context(LlamaCppEngine(weights, slots=SLOTS, context=1024, threads=1))
            process = engine._process
            assert process is not None
            processes[process.url] = engine
            replicas[process.url] = Replica(process.url, model="m", api_key=process.api_key, capabilities=None)
        agent = Agent("a", "Be brief.", retry=Retry(first=0.0))
        app = App(agent, engine=EnginePool(replicas))
        server = await stack.enter_async_context(Server(app, config(auth=AUTH)))
        http = aiohttp.ClientSession(headers={"Authorization": "Bearer key-a"})
        yield Scene(Caller(server, await stack.enter_async_context(http)), processes, replicas)


def test_threads_are_spread_and_each_finds_what_it_has_said_where_it_was() -> None:
    async def scenario() -> None:
        async with scene() as at:
            assert [row["size"] for row in (await at.standings()).values()] == [SLOTS, SLOTS], "as they say"
            threads = [f"thread-{number}" for number in range(4)]
            questions = [f"I am {thread}. {' '.join(FACTS)} Which house has most windows?" for thread in threads]
            firsts = await asyncio.gather(
                *(at.answered(question, thread) for question, thread in zip(questions, threads, strict=True))
            )
            assert sum(at.counts().values()) == 4
            assert all(at.counts().values()), "four at once are more than the share of one"
            for thread, first in zip(threads, firsts, strict=True):
                second = await at.answered("And which has fewest?", thread)
                assert first["usage"]["input_tokens"] > 200
                assert second["usage"]["cached_tokens"] >= 0.9 * first["usage"]["input_tokens"]

    run_async(scenario(), deadline=240)


def test_a_drained_process_ends_its_answer_gets_nothing_new_and_has_its_thread_again_when_it_is_resumed() -> None:
    async def scenario() -> None:
        async with scene() as at:
            run, busy = await at.begun("thread")
            status, answer = await at.caller.post("/v1/replicas/drain", {"replica": busy})
            assert (status, answer["replicas"][0]["active"]) == (202, 1)
            before = at.counts()
            for number in range(3):
                await at.answered("Say hello.", f"other-{number}")
            assert at.counts() == {name: count + 3 * (name != busy) for name, count in before.items()}
            status, answer = await at.caller.post("/v1/replicas/drain?wait=120", {"replica": busy})
            assert (status, answer["replicas"][0]["active"]) == (200, 0)
            said = [record["event"] for record in await at.records(run)]
            assert not {"turn.continued", "text.retracted"} & set(said)
            await at.answered("Go on.", "thread")
            assert at.counts()[busy] == before[busy]
            status, answer = await at.caller.post("/v1/replicas/resume?wait=60", {"replica": busy})
            assert (status, answer["replicas"][0]["draining"]) == (200, False)
            await at.answered("Go on.", "thread")
            assert at.counts()[busy] == before[busy] + 1

    run_async(scenario(), deadline=240)


def test_an_answer_whose_process_is_killed_goes_on_at_the_other_one() -> None:
    async def scenario() -> None:
        async with scene() as at:
            run, busy = await at.begun("thread")
            (other,) = at.processes.keys() - {busy}
            assert at.counts() == {busy: 1, other: 0}
            pid = at.processes[busy].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            records = await at.records(run)
            (cut,) = [place for place, record in enumerate(records) if record["event"] == "turn.continued"]
            assert records[cut]["reason"] == "engine_died"
            assert "text.retracted" not in [record["event"] for record in records]
            before, after = (
                "".join(record["text"] for record in part if record["event"] == "text.delta")
                for part in (records[:cut], records[cut:])
            )
            assert before
            assert after
            assert records[-1]["output"] == before + after
            assert at.counts()[other] == 1

    run_async(scenario(), deadline=240)
