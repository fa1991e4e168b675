"""What operators ask of a server with several model servers behind it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest

from fake_upstream import Answer, Asked, FakeUpstream, delta, json_answer, sse, vectors_of
from harness import run_async, until
from headrace import errors
from headrace.agent.loop import Agent
from headrace.agent.port import RunContext
from headrace.config import AuthConfig, Config, EngineConfig
from headrace.engine.port import Embedder
from headrace.errors import HeadraceError
from headrace.events import RunFinished
from headrace.http.problem import STATUS
from headrace.resilience.retry import Retry
from serving import Caller, FunctionAgent, config, count, running

AGENT = Agent("a", "Be brief.", retry=Retry(first=0.0))
AUTH = AuthConfig(keys={"ann": "key-a", "bob": "key-b"}, operators=("ann",))
ANN = {"authorization": "Bearer key-a"}
BOB = {"authorization": "Bearer key-b"}


class Model:
    """A model server's answers: a word at once, another one when it may go `on`. One that is not `fit` answers 503."""

    def __init__(self) -> None:
        self.on = asyncio.Event()
        self.fit = True

    def __call__(self, asked: Asked) -> Answer:
        if asked.path.endswith("/models"):
            return json_answer({"data": [{"id": "m", "owned_by": "vllm"}]})
        if not self.fit:
            return json_answer({"error": {"message": "loading"}}, status=503)
        if asked.body.get("max_tokens") == 1:
            return Answer([sse(delta(content="Hi"), delta("length"), "[DONE]")])
        return Answer([sse(delta(content="One ")), self.on, sse(delta(content="two"), delta("stop"), "[DONE]")])


class Scene:
    """A server that asks two model servers, and an operator."""

    def __init__(self, caller: Caller, models: dict[str, Model], servers: dict[str, FakeUpstream]) -> None:
        self.caller = caller
        self.models = models
        self.servers = servers

    async def busy(self) -> tuple[str, str, str]:
        """A run that is being answered, the server at which it is, and the other one."""
        run = await self.start()
        await until(lambda: any(server.open_now for server in self.servers.values()))
        at = next(url for url, server in self.servers.items() if server.open_now)
        return run, at, next(url for url in self.servers if url != at)

    async def start(self) -> str:
        status, run = await self.caller.post("/v1/runs", {"input": "Count."}, **BOB)
        assert status == 202
        return str(run["run_id"])

    async def list(self) -> dict[str, dict[str, Any]]:
        status, listed = await self.caller.get("/v1/replicas", **ANN)
        assert status == 200
        return {row["name"]: row for row in listed["replicas"]}

    async def drains(self, name: str) -> None:
        """Wait until it does."""
        async with asyncio.timeout(10):
            while not (await self.list())[name]["draining"]:  # noqa: ASYNC110 - the server can only be asked
                await asyncio.sleep(0.01)

    async def tell(self, what: str, name: str, query: str = "", **more: Any) -> tuple[int, Any]:
        return await self.caller.post(f"/v1/replicas/{what}{query}", {"replica": name, **more}, **ANN)


def with_engines(*urls: str, **more: object) -> Config:
    return msgspec.structs.replace(
        config(auth=AUTH), engine=msgspec.convert({"url": urls, "model": "m", **more}, EngineConfig)
    )


@asynccontextmanager
async def scene(**more: object) -> AsyncIterator[Scene]:
    one, two = Model(), Model()
    async with (
        FakeUpstream(choose=one) as a,
        FakeUpstream(choose=two) as b,
        running(AGENT, settings=with_engines(a.url, b.url, **more)) as caller,
    ):
        yield Scene(caller, {a.url: one, b.url: two}, {a.url: a, b.url: b})


async def finished(scene: Scene, run: str) -> str:
    async with asyncio.timeout(10):
        while True:
            _, shown = await scene.caller.get(f"/v1/runs/{run}", **BOB)
            if shown["state"]["status"] == "completed":
                return str(shown["state"]["output"])
            await asyncio.sleep(0.01)


def test_the_list_says_how_each_model_server_is_doing() -> None:
    async def scenario() -> None:
        async with scene(concurrency=1) as at:
            idle = {"model": "m", "state": "closed", "active": 0, "size": 1, "draining": False, "waiting": 0}
            assert await at.list() == {url: {"name": url, **idle} for url in at.servers}
            for _ in range(3):
                await at.start()
            await until(lambda: all(server.open_now for server in at.servers.values()))
            rows = await at.list()
            assert [(row["active"], row["waiting"]) for row in rows.values()] == [(1, 1), (1, 1)]
            for model in at.models.values():
                model.on.set()

    run_async(scenario())


def test_a_drain_is_accepted_at_once_and_done_when_its_last_answer_has_ended() -> None:
    async def scenario() -> None:
        async with scene() as at:
            run, busy, other = await at.busy()
            status, drained = await at.tell("drain", busy)
            assert status == 202
            assert [(row["name"], row["active"], row["draining"]) for row in drained["replicas"]] == [(busy, 1, True)]
            at.models[other].on.set()
            asked = len(at.servers[busy].asked)
            for _ in range(4):
                await at.caller.post("/v1/runs", {"input": "Count."}, prefer="wait=20", **BOB)
            assert len(at.servers[busy].asked) == asked
            waiting = asyncio.ensure_future(at.tell("drain", busy, "?wait=20"))
            at.models[busy].on.set()
            status, drained = await waiting
            assert (status, drained["replicas"][0]["active"]) == (200, 0)
            assert await finished(at, run) == "One two"
            assert (await at.tell("drain", busy))[0] == 200

    run_async(scenario())


def test_a_server_that_makes_embeddings_is_drained_when_it_has_made_them() -> None:
    on = asyncio.Event()

    def embedding(asked: Asked) -> Answer:
        if asked.path.endswith("/embeddings"):
            vectors = vectors_of(asked.body["input"])
            return msgspec.structs.replace(vectors, steps=[on, *vectors.steps])
        return Model()(asked)

    async def embed(run: RunContext) -> RunFinished:
        await cast(Embedder, run.engine).embed(["one"])
        return RunFinished(status="completed", output="done")

    agent = FunctionAgent(embed)
    agent.needs_engine = True

    async def scenario() -> None:
        async with (
            FakeUpstream(choose=embedding) as a,
            FakeUpstream(choose=embedding) as b,
            running(agent, settings=with_engines(a.url, b.url)) as caller,
        ):
            servers = {a.url: a, b.url: b}
            at = Scene(caller, {}, servers)
            run, busy, _ = await at.busy()
            assert (await at.tell("drain", busy))[0] == 202
            waiting = asyncio.ensure_future(at.tell("drain", busy, "?wait=20"))
            on.set()
            assert (await waiting)[0] == 200
            assert not servers[busy].open_now
            assert await finished(at, run) == "done"

    run_async(scenario())


def test_a_wait_that_is_over_leaves_the_drain_as_it_is() -> None:
    async def scenario() -> None:
        async with scene() as at:
            _, busy, _ = await at.busy()
            assert (await at.tell("drain", busy, "?wait=1"))[0] == 202
            assert (await at.list())[busy]["draining"]
            at.models[busy].on.set()

    run_async(scenario())


def test_a_client_that_leaves_while_it_waits_leaves_the_drain_as_it_is() -> None:
    async def scenario() -> None:
        async with scene() as at:
            _, busy, _ = await at.busy()
            waiting = asyncio.ensure_future(at.tell("drain", busy, "?wait=300"))
            await at.drains(busy)
            waiting.cancel()
            await asyncio.wait([waiting])
            await until(lambda: not any("settles" in repr(task.get_coro()) for task in asyncio.all_tasks()))
            assert (await at.list())[busy]["draining"]
            at.models[busy].on.set()

    run_async(scenario())


def test_a_resumed_server_is_in_service_once_it_has_said_a_token_and_whoever_waits_for_its_drain_is_told() -> None:
    async def scenario() -> None:
        async with scene() as at:
            run, busy, _ = await at.busy()
            waiting = asyncio.ensure_future(at.tell("drain", busy, "?wait=300"))
            await at.drains(busy)
            status, back = await at.tell("resume", busy, "?wait=20")
            assert (status, back["replicas"][0]["state"], back["replicas"][0]["draining"]) == (200, "warming", False)
            status, problem = await waiting
            assert (status, problem["code"]) == (409, "replica_conflict")
            at.models[busy].on.set()
            assert await finished(at, run) == "One two"

    run_async(scenario())


def test_a_server_that_is_resumed_too_early_gets_no_runs_until_it_is_fit() -> None:
    async def scenario() -> None:
        async with scene() as at:
            one, _ = at.servers
            for model in at.models.values():
                model.on.set()
            await at.tell("drain", one)
            at.models[one].fit = False
            status, early = await at.tell("resume", one, "?wait=0")
            assert (status, early["replicas"][0]["state"]) == (202, "open")
            at.models[one].fit = True
            status, back = await at.tell("resume", one, "?wait=20")
            assert (status, back["replicas"][0]["state"]) == (200, "warming")

    run_async(scenario())


def test_the_last_server_in_service_is_drained_only_by_force() -> None:
    async def scenario() -> None:
        async with scene() as at:
            one, other = at.servers
            assert (await at.tell("drain", one))[0] == 200
            status, problem = await at.tell("drain", other)
            assert (status, problem["code"]) == (409, "replica_conflict")
            assert "force" in problem["hint"]
            assert not (await at.list())[other]["draining"]
            assert (await at.tell("drain", one))[0] == 200  # again changes nothing
            assert (await at.tell("drain", other, force=True))[0] == 200
            assert (await at.list())[other]["draining"]

    run_async(scenario())


def test_only_operators_may_and_without_keys_nobody() -> None:
    async def scenario() -> None:
        async with scene() as at:
            one, *_ = at.servers
            body = {"replica": one}
            answers = [
                await at.caller.get("/v1/replicas", **BOB),
                await at.caller.post("/v1/replicas/drain", body, **BOB),
                await at.caller.post("/v1/replicas/resume", body, **BOB),
            ]
            for status, problem in answers:
                assert (status, problem["code"]) == (403, "forbidden")
                assert "auth.operators" in problem["hint"]
                assert one not in str(problem)
            assert (await at.caller.get("/v1/replicas"))[0] == 401
            assert not (await at.list())[one]["draining"]
            public = msgspec.structs.replace(with_engines(*at.servers), auth=AuthConfig())
            async with running(AGENT, settings=public) as caller:
                assert (await caller.get("/v1/replicas"))[0] == 403
                assert (await caller.post("/v1/replicas/drain", body))[0] == 403

    run_async(scenario())


@pytest.mark.parametrize(
    ("body", "query", "status", "code"),
    [
        ({"replica": "http://nowhere"}, "", 404, "unknown_replica"),
        ({}, "", 400, "invalid_request"),
        ({"replica": 1}, "", 400, "invalid_request"),
        ({"replica": "http://nowhere", "now": True}, "", 400, "invalid_request"),
        ({"replica": "http://nowhere"}, "?wait=301", 400, "invalid_request"),
        ({"replica": "http://nowhere"}, "?wait=long", 400, "invalid_request"),
    ],
)
@pytest.mark.parametrize("what", ["drain", "resume"])
def test_what_cannot_be_meant_is_refused(what: str, body: object, query: str, status: int, code: str) -> None:
    async def scenario() -> None:
        async with scene() as at:
            answered, problem = await at.caller.post(f"/v1/replicas/{what}{query}", body, **ANN)
            assert (answered, problem["code"]) == (status, code)

    run_async(scenario())


def test_a_server_without_replicas_says_so() -> None:
    async def scenario() -> None:
        async with running(FunctionAgent(count), settings=config(auth=AUTH)) as caller:
            answers = [
                await caller.get("/v1/replicas", **ANN),
                await caller.post("/v1/replicas/drain", {"replica": "x"}, **ANN),
                await caller.post("/v1/replicas/resume", {"replica": "x"}, **ANN),
            ]
            for status, problem in answers:
                assert (status, problem["code"]) == (409, "no_replicas")

    run_async(scenario())


def test_the_model_servers_behind_a_fallback_are_shown_by_their_addresses_without_passwords() -> None:
    async def scenario() -> None:
        async with FakeUpstream(choose=Model()) as a, FakeUpstream(choose=Model()) as b:
            secret = a.url.replace("http://", "http://me:secret@")
            wanted = with_engines(secret, b.url, fallback_url=b.url, fallback_model="small", concurrency=2)
            async with running(AGENT, settings=wanted) as caller:
                _, listed = await caller.get("/v1/replicas", **ANN)
                shown = [(row["name"], row["model"]) for row in listed["replicas"]]
                assert shown == [(a.url.replace("http://", "http://me:***@"), "m"), (b.url, "m"), (b.url, "small")]
                status, drained = await caller.post("/v1/replicas/drain", {"replica": shown[0][0]}, **ANN)
                assert (status, len(drained["replicas"])) == (200, 1)

    run_async(scenario())


def test_every_refusal_of_a_request_is_in_the_one_tree_of_errors_by_its_code() -> None:
    classes = [each for each in vars(errors).values() if isinstance(each, type)]
    ours = {each.code for each in classes if issubclass(each, HeadraceError)}
    assert STATUS.keys() - ours == {"not_found", "method_not_allowed"}, "these are the router's"
