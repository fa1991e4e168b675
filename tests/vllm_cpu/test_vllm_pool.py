"""A Headrace server with two real vLLM servers behind it: threads stay, one is drained and resumed, one is killed."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from harness import run_async
from headrace.agent.app import App
from headrace.agent.loop import Agent
from headrace.config import AuthConfig
from headrace.engine.answer.stream import AnswerStream
from headrace.engine.openai.engine import OpenAIEngine
from headrace.engine.pool.pool import EnginePool
from headrace.engine.port import ModelRequest
from headrace.resilience.retry import Retry
from headrace.server import Server
from serving import Caller, config, read_until
from vllm_server import SLOTS, VllmServer, vllm_server

AUTH = AuthConfig(keys={"ann": "key-a"}, operators=("ann",))
FACTS = " ".join(f"House {number} has {number + 2} windows and a red door." for number in range(15))


class Endless(OpenAIEngine):
    """The random model would end its answers anywhere."""

    def answer(self, request: ModelRequest) -> AnswerStream:
        return super().answer(msgspec.structs.replace(request, extra={"ignore_eos": True}))


@pytest.fixture
def servers(tiny: Path, tmp_path: Path) -> Iterator[dict[str, VllmServer]]:
    """By their addresses."""
    with ExitStack() as stack:
        both = [stack.enter_context(vllm_server(tiny, tmp_path / f"log-{n}", wait=False)) for n in range(2)]
        for server in both:
            server.wait_until_up()
        yield {server.url: server for server in both}


async def answered(caller: Caller, question: str, thread: str) -> dict[str, Any]:
    """What a run that has ended used."""
    body = {"input": question, "thread_id": thread, "options": {"max_tokens": 4, "temperature": 0.0}}
    status, run = await caller.post("/v1/runs", body, prefer="wait=60")
    assert (status, run["state"]["status"]) == (200, "completed"), run
    usage: dict[str, Any] = run["state"]["usage"]
    return usage


async def begun(caller: Caller, thread: str) -> tuple[str, str]:
    """A long run that has said its first words, and the address of the server that says them."""
    run = await caller.start("Tell a story.", thread_id=thread, options={"max_tokens": 1200, "temperature": 0.0})
    async with caller.stream(f"/v1/runs/{run}/events") as answer:
        await read_until(answer, b"event: text.delta")
    (at,) = [row["name"] for row in await standings(caller) if row["active"]]
    return run, at


async def standings(caller: Caller) -> list[dict[str, Any]]:
    _, listed = await caller.get("/v1/replicas")
    rows: list[dict[str, Any]] = listed["replicas"]
    return rows


async def records(caller: Caller, run: str) -> list[dict[str, Any]]:
    found = await caller.events(f"/v1/runs/{run}/events")
    assert (found[-1]["event"], found[-1]["status"]) == ("run.finished", "completed")
    return found


def test_threads_stay_a_drained_server_ends_its_answer_and_a_killed_one_s_goes_on(
    servers: dict[str, VllmServer],
) -> None:
    async def scenario() -> None:
        pool = EnginePool({url: Endless(url, model="tiny", capabilities=None) for url in servers})
        app = App(Agent("a", "Be brief.", retry=Retry(first=0.0)), engine=pool)
        async with (
            Server(app, config(auth=AUTH)) as server,
            aiohttp.ClientSession(headers={"Authorization": "Bearer key-a"}) as http,
        ):
            caller = Caller(server, http)
            assert [row["size"] for row in await standings(caller)] in ([SLOTS, SLOTS], [64, 64]), "64 until it is told"

            first = await answered(caller, f"{FACTS} Which house has most windows?", "thread")
            second = await answered(caller, "And which has fewest?", "thread")
            assert second["cached_tokens"] >= 0.8 * first["input_tokens"] > 100

            run, busy = await begun(caller, "drained")
            status, answer = await caller.post("/v1/replicas/drain?wait=60", {"replica": busy})
            assert (status, answer["replicas"][0]["active"]) == (200, 0)
            assert "turn.continued" not in [record["event"] for record in await records(caller, run)]
            before = servers[busy].metric("request_success_total")
            for number in range(3):
                await answered(caller, "Say hello.", f"other-{number}")
            assert servers[busy].metric("request_success_total") == before
            status, answer = await caller.post("/v1/replicas/resume?wait=60", {"replica": busy})
            assert (status, answer["replicas"][0]["draining"]) == (200, False)

            run, busy = await begun(caller, "killed")
            servers[busy].kill()
            found = await records(caller, run)
            (cut,) = [place for place, record in enumerate(found) if record["event"] == "turn.continued"]
            assert "text.retracted" not in [record["event"] for record in found]
            said = [
                "".join(r["text"] for r in part if r["event"] == "text.delta") for part in (found[:cut], found[cut:])
            ]
            assert all(said)
            assert found[-1]["output"] == "".join(said)

    run_async(scenario(), deadline=240)
