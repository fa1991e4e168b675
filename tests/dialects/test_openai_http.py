"""OpenAI's protocols on the wire, byte for byte: what no client library shows."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from harness import run_async, until
from headrace.agent.port import RunContext
from headrace.config import AuthConfig, Config, LogConfig, ServerConfig
from headrace.events import RunFinished, TextDelta
from headrace.messages import Message
from openai_schema import check, check_event, sse_data
from serving import Caller, FunctionAgent, Gate, config, count, read_until, running

COUNT = FunctionAgent(count, "docs")
ASK: dict[str, Any] = {"model": "docs", "input": "30"}


async def response_of(caller: Caller, **more: Any) -> Any:
    status, shown = await caller.post("/v1/responses", {**ASK, **more})
    assert status == 200, shown
    return shown


async def raw_stream(caller: Caller, response_id: str, after: int | None = None) -> bytes:
    cursor = "" if after is None else f"&starting_after={after}"
    async with caller.stream(f"/v1/responses/{response_id}?stream=true{cursor}") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-accel-buffering"] == "no"
        return (await answer.read()).replace(b": hb\n", b"")


def test_a_resume_after_any_number_gives_the_same_later_bytes() -> None:
    async def scenario() -> None:
        async with running(COUNT) as caller:
            response = await response_of(caller)
            frames = [frame + b"\n\n" for frame in (await raw_stream(caller, response["id"])).split(b"\n\n")[:-1]]
            assert b"\r" not in b"".join(frames)
            for after in range(len(frames)):
                assert await raw_stream(caller, response["id"], after) == b"".join(frames[after + 1 :])

    run_async(scenario())


def test_a_restarted_server_streams_the_same_bytes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(COUNT, settings=config(tmp_path)) as caller:
            response = await response_of(caller)
            before = await raw_stream(caller, response["id"])
        async with running(COUNT, settings=config(tmp_path)) as caller:
            assert await raw_stream(caller, response["id"]) == before
            assert (await caller.get(f"/v1/responses/{response['id']}"))[1] == response

    run_async(scenario())


def test_a_response_whose_first_records_are_gone_is_shown_as_it_stands() -> None:
    settings = Config(
        server=ServerConfig(port=0), log=LogConfig(durability="memory", retain_records=16), auth=AuthConfig()
    )

    async def scenario() -> None:
        async with running(COUNT, settings=settings) as caller:
            response = await response_of(caller)
            events = [json.loads(data) for data in sse_data(await raw_stream(caller, response["id"]))]
            assert (events[0]["type"], events[-1]["type"]) == ("response.created", "response.completed")
            assert events[-1]["response"] == response
            for event in events:
                check_event(event)
            numbers = [event["sequence_number"] for event in events]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))

    run_async(scenario())


@pytest.mark.parametrize("body", [{"model": "docs", "messages": [{"role": "user", "content": "x"}]}, ASK])
def test_silence_is_filled_with_comments_and_never_with_data(body: dict[str, Any]) -> None:
    async def scenario() -> None:
        gate = Gate()
        path = "/v1/chat/completions" if "messages" in body else "/v1/responses"
        async with running(FunctionAgent(gate, "docs")) as caller:
            data = json.dumps({**body, "stream": True})
            async with caller.http.post(caller.server.url + path, data=data) as answer:
                raw = await read_until(answer, b": hb\n: hb\n")
                gate.open.set()
                raw += await answer.read()
            for data in sse_data(raw.replace(b": hb\n", b"")):
                assert data == "[DONE]" or "object" in json.loads(data) or "type" in json.loads(data)

    run_async(scenario())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b'{"model": "docs"}', b'{"model": "\\ud800"}', b"\xff", b"[" * 9000]
)
def test_a_body_that_is_no_request_is_a_400_in_their_words(path: str, body: bytes) -> None:
    async def scenario() -> None:
        async with running(COUNT) as caller:
            status, shown = await caller.post(path, body)
            assert (status, shown["error"]["type"]) == (400, "invalid_request_error")
            check("ErrorResponse", shown)
            assert await caller.server.log.runs("default") == []

    run_async(scenario())


def test_a_body_over_the_limit_and_a_missing_key_are_told_in_their_words() -> None:
    async def scenario() -> None:
        settings = config(limits={"body_bytes": 1000}, auth=AuthConfig(keys={"a": "key-a"}))
        async with running(COUNT, settings=settings) as caller:
            status, shown = await caller.post("/v1/responses", ASK)
            assert (status, shown["error"]["type"]) == (401, "authentication_error")
            status, shown = await caller.post("/v1/responses", {**ASK, "x": "y" * 2000}, authorization="Bearer key-a")
            assert (status, shown["error"]["code"]) == (413, "payload_too_large")
            check("ErrorResponse", shown)

    run_async(scenario())


@pytest.mark.parametrize("name", ["resp_1", "resp_" + "0" * 32, "x", "01939bdc-7c1e-7a3b-8f00-0123456789ab"])
def test_an_unknown_response_is_a_404(name: str) -> None:
    async def scenario() -> None:
        async with running(COUNT) as caller:
            for answer in (
                await caller.get(f"/v1/responses/{name}"),
                await caller.get(f"/v1/responses/{name}?stream=true"),
                await caller.post(f"/v1/responses/{name}/cancel"),
            ):
                status, shown = answer
                assert (status, shown["error"]["code"]) == (404, "unknown_run")

    run_async(scenario())


def test_a_client_that_will_ask_again_with_its_key_finds_the_whole_answer() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with running(FunctionAgent(gate, "docs")) as caller:
            body = json.dumps({**ASK, "stream": True})
            key = {"idempotency-key": "k1"}
            async with caller.http.post(caller.server.url + "/v1/responses", data=body, headers=key) as answer:
                await read_until(answer, b"before ")
            gate.open.set()
            await until(lambda: not caller.server.supervisor.active)
            async with caller.http.post(caller.server.url + "/v1/responses", data=body, headers=key) as answer:
                events = [json.loads(data) for data in sse_data((await answer.read()).replace(b": hb\n", b""))]
            assert not gate.cancelled
            assert events[-1]["response"]["output"][0]["content"][0]["text"] == "before after"

    run_async(scenario())


def test_a_run_of_the_native_protocol_is_a_response_too() -> None:
    async def scenario() -> None:
        async with running(COUNT) as caller:
            state = await caller.finished("3", metadata={"openai": "mine", "n": 1})
            status, shown = await caller.get(f"/v1/responses/resp_{state['run_id'].replace('-', '')}")
            assert (status, shown["status"], shown["metadata"]) == (200, "completed", {"openai": "mine"})
            check("Response", shown)

    run_async(scenario())


def test_many_clients_of_one_response_see_the_same_bytes_while_it_is_live() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()

        async def slowly(context: RunContext) -> RunFinished:
            for i in range(700):  # more than a fold keeps apart
                context.emit(TextDelta(text=f"{i} "))
                if i % 100 == 50:
                    await asyncio.sleep(0)
            await gate.wait()
            return RunFinished(status="completed", output="".join(f"{i} " for i in range(700)))

        async with running(FunctionAgent(slowly, "docs")) as caller:
            begun = await response_of(caller, background=True)
            async with asyncio.TaskGroup() as group:
                reading = [group.create_task(raw_stream(caller, begun["id"])) for _ in range(5)]
                gate.set()
            assert len({task.result() for task in reading}) == 1
            events = [json.loads(data) for data in sse_data(reading[0].result())]
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
            said = "".join(event["delta"] for event in events if event["type"].endswith("text.delta"))
            assert (
                said
                == events[-1]["response"]["output"][0]["content"][0]["text"]
                == "".join(f"{i} " for i in range(700))
            )

    run_async(scenario())


def test_the_conversation_of_a_chat_request_reaches_the_agent_as_it_was_sent() -> None:
    seen: list[tuple[Message, ...]] = []

    async def looking(context: RunContext) -> RunFinished:
        seen.append(context.input)
        return RunFinished(status="completed", output=context.question)

    async def scenario() -> None:
        messages = [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "two"},
            {"role": "user", "content": [{"type": "text", "text": "three"}]},
        ]
        async with running(FunctionAgent(looking, "docs")) as caller:
            status, shown = await caller.post("/v1/chat/completions", {"model": "docs", "messages": messages})
            assert (status, shown["choices"][0]["message"]["content"]) == (200, "three")
            assert [(m.role, m.content) for m in seen[0]] == [("user", "one"), ("assistant", "two"), ("user", "three")]

    run_async(scenario())
