"""The unmodified `openai` client against a real server."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import openai
import pytest
from openai import AsyncOpenAI

from harness import run_async, until
from headrace.agent.app import App
from headrace.agent.loop import Agent
from headrace.agent.port import AgentPort, RunContext
from headrace.config import AuthConfig, Config
from headrace.engine.port import Finish, ModelRequest, Text, Thinking, ToolCallPart
from headrace.engine.scripted import Hang, Pause, Script, ScriptedEngine, Step
from headrace.errors import EngineDied, EngineOverloaded, EngineRejected
from headrace.events import RunFinished, SourceCited, TextDelta, TextRetracted
from headrace.messages import Usage
from headrace.resilience.retry import Retry
from headrace.server import Server
from headrace.tools.function import tool
from openai_schema import check, check_event
from proxy import Proxy
from serving import FunctionAgent, config

CALL: list[Step] = [
    ToolCallPart(index=0, call_id="c1", name="look_up", arguments='{"q": '),
    ToolCallPart(index=0, arguments='"tea"}'),
    ToolCallPart(index=1, call_id="c2", name="look_up", arguments='{"q": "milk"}'),
    Finish(reason="tool_calls", usage=Usage(input_tokens=5, output_tokens=7)),
]
LOOK_UP: Any = {"name": "look_up", "description": "Finds", "parameters": {"type": "object", "properties": {"q": {}}}}
CHAT_TOOLS: Any = [{"type": "function", "function": LOOK_UP}]
RESPONSE_TOOLS: Any = [{"type": "function", "strict": None, **LOOK_UP}]
RESUMABLE: Any = {"model": "docs", "input": "Why?", "background": True, "stream": True}
USER: Any = [{"role": "user", "content": "Why?"}]


class Site:
    """A server and a client of it."""

    def __init__(self, server: Server, client: AsyncOpenAI) -> None:
        self.server = server
        self.client = client

    def chat(self, **more: Any) -> Any:
        return self.client.chat.completions.create(**{"model": "docs", "messages": USER, **more})

    def respond(self, **more: Any) -> Any:
        return self.client.responses.create(**{"model": "docs", "input": "Why?", **more})

    @property
    def settled(self) -> bool:
        return not self.server.supervisor.active


@asynccontextmanager
async def site(
    *agents: AgentPort, settings: Config | None = None, key: str = "none", retries: int = 0
) -> AsyncIterator[Site]:
    async with (
        Server(App(*agents), settings or config()) as server,
        AsyncOpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=retries, timeout=20) as client,
    ):
        yield Site(server, client)


def docs(engine: ScriptedEngine, **more: Any) -> Agent:
    return Agent("docs", "Be right.", engine=engine, **{"retry": Retry(attempts=1), **more})


def talking(script: Any, **more: Any) -> Agent:
    return docs(ScriptedEngine(script, **more))


async def collect(stream: Any, into: list[Any]) -> None:
    """Every event, each checked against the published schema."""
    async for event in stream:
        shown = json.loads(event.model_dump_json(exclude_unset=True))
        if shown.get("object") == "chat.completion.chunk":
            check("CreateChatCompletionStreamResponse", shown)
        else:
            check_event(shown)
        into.append(event)


async def collected(stream: Any) -> list[Any]:
    found: list[Any] = []
    await collect(stream, found)
    return found


def test_a_completion_streams_and_comes_whole_with_the_same_words() -> None:
    async def scenario() -> None:
        async with site(talking("It is a log.")) as here:
            chunks = await collected(await here.chat(stream=True, stream_options={"include_usage": True}))
            whole = await here.chat()
            assert chunks[0].choices[0].delta.role == "assistant"
            assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == "It is a log."
            assert [c.choices[0].finish_reason for c in chunks[:-1] if c.choices[0].finish_reason] == ["stop"]
            assert len({(c.id, c.created, c.model) for c in chunks}) == 1
            assert chunks[-1].choices == []
            assert chunks[-1].usage == whole.usage
            assert all(chunk.usage is None for chunk in chunks[:-1])
            assert whole.choices[0].message.content == "It is a log."
            check("CreateChatCompletionResponse", json.loads(whole.model_dump_json(exclude_unset=True)))

    run_async(scenario())


def test_the_sync_client_reads_a_stream_too() -> None:
    async def scenario() -> None:
        async with site(talking("One two.")) as here:
            base_url = str(here.client.base_url)

            def read() -> str:
                with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
                    stream = client.chat.completions.create(model="docs", messages=USER, stream=True)
                    return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

            assert await asyncio.to_thread(read) == "One two."

    run_async(scenario())


def test_the_models_are_the_agents() -> None:
    async def scenario() -> None:
        async with site(talking("x")) as here:
            assert [model.id async for model in here.client.models.list()] == ["docs"]
            assert (await here.client.models.retrieve("docs")).object == "model"
            with pytest.raises(openai.NotFoundError, match="GET /v1/models"):
                await here.client.models.retrieve("gpt")

    run_async(scenario())


def test_options_and_the_conversation_reach_the_engine() -> None:
    async def scenario() -> None:
        engine = ScriptedEngine("x")
        async with site(docs(engine)) as here:
            messages = [{"role": "system", "content": "Short."}, *USER]
            await here.chat(messages=messages, max_tokens=9, temperature=0.5, stop=["END"], seed=4)
            (request,) = engine.requests
            assert [(m.role, m.content) for m in request.messages] == [
                ("system", "Be right."),
                ("system", "Short."),
                ("user", "Why?"),
            ]
            assert (request.max_tokens, request.temperature, request.stop, request.seed) == (9, 0.5, ("END",), 4)

    run_async(scenario())


def test_a_client_tool_finishes_with_tool_calls_in_both_modes_and_its_result_goes_on() -> None:
    async def scenario() -> None:
        def script(request: ModelRequest) -> Script:
            return "Tea." if any(m.role == "tool" for m in request.messages) else CALL

        engine = ScriptedEngine(script)
        async with site(docs(engine)) as here:
            whole = await here.chat(tools=CHAT_TOOLS)
            async with here.client.chat.completions.stream(model="docs", messages=USER, tools=CHAT_TOOLS) as stream:
                async for _ in stream:
                    pass
                streamed = await stream.get_final_completion()
            for choice in (whole.choices[0], streamed.choices[0]):
                assert choice.finish_reason == "tool_calls"
                calls = choice.message.tool_calls or []
                assert [json.loads(call.function.arguments) for call in calls] == [{"q": "tea"}, {"q": "milk"}]
                assert len({call.id for call in calls}) == 2
            ids = [call.id for call in whole.choices[0].message.tool_calls]
            answers = [{"role": "tool", "tool_call_id": call_id, "content": "found"} for call_id in ids]
            after = await here.chat(messages=[*USER, whole.choices[0].message, *answers], tools=CHAT_TOOLS)
            assert (after.choices[0].message.content, after.choices[0].finish_reason) == ("Tea.", "stop")

    run_async(scenario())


def test_a_server_tool_is_run_here_and_not_shown() -> None:
    @tool(effect="none")
    def clock() -> str:
        """The time."""
        return "noon"

    call: list[Step] = [ToolCallPart(index=0, call_id="c", name="clock", arguments="{}"), Finish(reason="tool_calls")]

    async def scenario() -> None:
        engine = ScriptedEngine(scripts=[call, "It is noon.", call, "It is noon."])
        async with site(docs(engine, tools=[clock])) as here:
            chunks = await collected(await here.chat(stream=True))
            assert not any(choice.delta.tool_calls for chunk in chunks for choice in chunk.choices)
            assert chunks[-1].choices[0].finish_reason == "stop"
            response = await here.respond()
            assert [item.type for item in response.output] == ["message"]
            assert response.output_text == "It is noon."

    run_async(scenario())


def test_reasoning_is_shown_as_such() -> None:
    async def scenario() -> None:
        async with site(talking([Thinking("Hm. "), Thinking("Yes."), Text("42")])) as here:
            message = (await here.chat()).choices[0].message
            assert (message.reasoning_content, message.content) == ("Hm. Yes.", "42")
            reasoning, answer = (await here.respond()).output
            assert reasoning.content[0].text == "Hm. Yes."
            assert answer.content[0].text == "42"

    run_async(scenario())


def test_an_error_in_mid_stream_raises_in_the_client() -> None:
    async def scenario() -> None:
        async with site(talking([Text("half"), EngineDied("The engine is gone.")])) as here:
            chunks: list[Any] = []
            with pytest.raises(openai.APIError, match="The engine is gone") as caught:
                await collect(await here.chat(stream=True), chunks)
            assert (chunks[-1].choices[0].delta.content, caught.value.code, caught.value.type) == (
                "half",
                "engine_died",
                "server_error",
            )

    run_async(scenario())


def test_a_retraction_in_mid_stream_raises_and_stops_the_run() -> None:
    async def retracting(context: RunContext) -> RunFinished:
        context.emit(TextDelta(text="wrong"))
        context.emit(TextRetracted(turn=0, reason="failed over"))
        await asyncio.Event().wait()
        raise AssertionError

    async def scenario() -> None:
        async with site(FunctionAgent(retracting, "docs")) as here:
            with pytest.raises(openai.APIError, match="void"):
                await collected(await here.chat(stream=True))
            await until(lambda: here.settled)

    run_async(scenario())


def test_a_server_that_goes_away_says_so_instead_of_ending_the_stream_in_silence() -> None:
    async def scenario() -> None:
        engine = ScriptedEngine([Text("half"), Hang()])
        settings = config(server={"drain_grace": 0.05})
        async with site(docs(engine), settings=settings) as here:
            stream = await here.chat(stream=True)
            await until(lambda: engine.open_now == 1)
            await here.server.drain()
            with pytest.raises(openai.APIError, match="going away"):
                await collected(stream)

    run_async(scenario())


@pytest.mark.parametrize(
    ("fault", "expected", "requests"),
    [
        (EngineOverloaded("Busy."), openai.RateLimitError, 2),
        (EngineDied("Gone."), openai.InternalServerError, 2),
        (EngineRejected("No."), openai.BadRequestError, 1),
    ],
)
def test_a_failed_run_is_an_http_error_that_says_whether_to_retry(
    fault: Any, expected: type[openai.APIStatusError], requests: int
) -> None:
    async def scenario() -> None:
        engine = ScriptedEngine(lambda _: [fault])
        async with site(docs(engine), retries=1) as here:
            for ask in (here.chat, here.respond):
                engine.requests.clear()
                with pytest.raises(expected):
                    await ask()
                assert len(engine.requests) == requests

    run_async(scenario())


@pytest.mark.parametrize(
    ("more", "param"), [({"n": 2}, "n"), ({"max_tokens": 0}, "max_tokens"), ({"messages": []}, "messages")]
)
def test_a_bad_request_is_refused_before_anything_starts(more: dict[str, Any], param: str) -> None:
    async def scenario() -> None:
        engine = ScriptedEngine("x")
        async with site(docs(engine)) as here:
            with pytest.raises(openai.BadRequestError) as caught:
                await here.chat(**more)
            assert caught.value.param == param
            with pytest.raises(openai.NotFoundError) as unknown:
                await here.chat(model="gpt-4")
            assert unknown.value.code == "model_not_found"
            assert engine.requests == []

    run_async(scenario())


@pytest.mark.parametrize("way", ["chat", "respond"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("script", [[Hang()], [Text("a "), Text("b "), Hang()]])
def test_a_foreground_request_stops_its_engine_when_the_client_goes(way: str, stream: bool, script: Any) -> None:
    async def scenario() -> None:
        engine = ScriptedEngine(script)
        async with site(docs(engine)) as here:
            asking = asyncio.ensure_future(getattr(here, way)(stream=stream))
            await until(lambda: engine.open_now == 1)
            if stream:
                await (await asking).close()
            else:
                asking.cancel()
                await asyncio.wait([asking])
            await until(lambda: engine.open_now == 0 and here.settled)
            (info,) = await here.server.log.runs("default")
            assert info.status == "cancelled"

    run_async(scenario())


def test_a_response_streams_its_events_in_order_and_the_helper_accumulates_them() -> None:
    async def scenario() -> None:
        async with site(talking("It is a log.")) as here:
            events = await collected(await here.respond(stream=True))
            assert [event.sequence_number for event in events] == list(range(len(events)))
            assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
            async with here.client.responses.stream(model="docs", input="Why?") as stream:
                async for _ in stream:
                    pass
                final = await stream.get_final_response()
            assert final.output_text == "It is a log."
            assert final.usage is not None
            check("Response", json.loads((await here.respond()).model_dump_json(exclude_unset=True)))

    run_async(scenario())


def test_a_background_response_that_was_lost_is_picked_up_with_nothing_lost_or_doubled() -> None:
    async def scenario() -> None:
        engine = ScriptedEngine([*(Text(f"w{i} ") for i in range(40)), Pause(0.2), *(Text("x ") for _ in range(10))])
        async with site(docs(engine)) as here, Proxy(here.server.port) as proxy:
            proxy.cuts.extend([9_000])
            async with AsyncOpenAI(
                base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="none", max_retries=0, timeout=20
            ) as client:
                lost: list[Any] = []
                with pytest.raises(openai.APIConnectionError):
                    await collect(await client.responses.create(**RESUMABLE), lost)
                response_id = lost[0].response.id
                last = lost[-1].sequence_number
                assert 0 < last < 50
                later = await collected(await client.responses.retrieve(response_id, stream=True, starting_after=last))
                whole = await collected(await client.responses.retrieve(response_id, stream=True))
            assert [event.sequence_number for event in [*lost, *later]] == list(range(len(whole)))
            assert [e.model_dump() for e in [*lost, *later]] == [e.model_dump() for e in whole]
            final = later[-1].response
            assert final.status == "completed"
            assert final.output_text == "".join(f"w{i} " for i in range(40)) + "x " * 10

    run_async(scenario())


def test_the_helper_that_filters_locally_resumes_from_the_whole_prefix() -> None:
    async def scenario() -> None:
        async with site(talking("a b c d e f")) as here:
            response = await here.respond(background=True)
            async with here.client.responses.stream(response_id=response.id, starting_after=5) as stream:
                events = [event async for event in stream]
                final = await stream.get_final_response()
            assert [event.sequence_number for event in events] == list(range(6, 6 + len(events)))
            assert final.output_text == "a b c d e f"

    run_async(scenario())


def test_a_background_response_outlives_its_client_and_is_polled() -> None:
    async def scenario() -> None:
        engine = ScriptedEngine([Text("a "), Pause(0.1), Text("b")])
        async with site(docs(engine)) as here:
            begun = await here.respond(background=True)
            assert begun.status in ("queued", "in_progress")
            stream = await here.client.responses.retrieve(begun.id, stream=True)
            await stream.close()
            await until(lambda: here.settled)
            done = await here.client.responses.retrieve(begun.id)
            assert (done.status, done.output_text, done.background) == ("completed", "a b", True)

    run_async(scenario())


def test_cancel_ends_a_background_response_and_may_be_repeated() -> None:
    async def scenario() -> None:
        engine = ScriptedEngine([Text("half"), Hang()])
        async with site(docs(engine)) as here:
            begun = await here.respond(background=True)
            await until(lambda: engine.open_now == 1)
            for _ in range(2):
                cancelled = await here.client.responses.cancel(begun.id)
                assert (cancelled.status, cancelled.output_text) == ("cancelled", "half")
            assert engine.open_now == 0
            events = await collected(await here.client.responses.retrieve(begun.id, stream=True))
            assert (events[-1].type, events[-1].response.status) == ("response.incomplete", "cancelled")

    run_async(scenario())


def test_previous_response_id_keeps_the_conversation_but_not_the_instructions() -> None:
    async def scenario() -> None:
        engine = ScriptedEngine(scripts=["One.", "Two.", "Three."])
        async with site(docs(engine)) as here:
            first = await here.respond(input="first?", instructions="Shout.")
            second = await here.respond(input="second?", previous_response_id=first.id)
            await here.respond(input="again?", previous_response_id=first.id)  # branches off before `second`
            said = [[m.content for m in request.messages] for request in engine.requests]
            assert said[0] == ["Be right.\n\nShout.", "first?"]
            assert said[1] == ["Be right.", "first?", "One.", "second?"]
            assert said[2] == ["Be right.", "first?", "One.", "again?"]
            assert second.previous_response_id == first.id
            assert (first.instructions, second.instructions) == ("Shout.", None)

    run_async(scenario())


def test_a_client_tools_result_goes_on_from_the_response_that_asked_for_it() -> None:
    async def scenario() -> None:
        engine = ScriptedEngine(scripts=[CALL, "Tea."])
        async with site(docs(engine)) as here:
            asked = await here.respond(tools=RESPONSE_TOOLS)
            assert [item.type for item in asked.output] == ["function_call", "function_call"]
            outputs = [{"type": "function_call_output", "call_id": c.call_id, "output": "found"} for c in asked.output]
            answered = await here.respond(input=outputs, previous_response_id=asked.id, tools=RESPONSE_TOOLS)
            assert answered.output_text == "Tea."
            messages = engine.requests[1].messages
            ids = [call.call_id for call in asked.output]
            assert [m.role for m in messages] == ["system", "user", "assistant", "tool", "tool"]
            assert [(m.call_id, m.content) for m in messages[3:]] == [(call_id, "found") for call_id in ids]

    run_async(scenario())


def test_sources_reach_the_client_as_annotations() -> None:
    async def citing(context: RunContext) -> RunFinished:
        context.emit(SourceCited(id="1", title="Log", url="https://example.org/log", text="a log"))
        context.emit(TextDelta(text="It is a log."))
        return RunFinished(status="completed", output="It is a log.")

    async def scenario() -> None:
        async with site(FunctionAgent(citing, "docs")) as here:
            (note,) = (await here.chat()).choices[0].message.annotations
            assert (note.url_citation.url, note.url_citation.start_index) == ("https://example.org/log", 6)
            (item,) = (await here.respond()).output
            assert item.content[0].annotations[0].title == "Log"

    run_async(scenario())


def test_another_tenants_response_is_not_there() -> None:
    async def scenario() -> None:
        settings = config(auth=AuthConfig(keys={"a": "key-a", "b": "key-b"}))
        async with site(talking("x"), settings=settings, key="key-a") as here:
            mine = await here.respond()
            theirs = here.client.with_options(api_key="key-b")
            for ask in (
                theirs.responses.retrieve(mine.id),
                theirs.responses.retrieve(mine.id, stream=True),
                theirs.responses.cancel(mine.id),
            ):
                with pytest.raises(openai.NotFoundError):
                    await ask
            with pytest.raises(openai.BadRequestError):
                await theirs.responses.create(model="docs", input="x", previous_response_id=mine.id)
            with pytest.raises(openai.AuthenticationError):
                await here.client.with_options(api_key="key-c").models.list()

    run_async(scenario())


@pytest.mark.parametrize("after", ["99", "x", "-2"])
def test_a_cursor_that_is_none_of_this_response_is_refused(after: str) -> None:
    async def scenario() -> None:
        async with site(talking("x")) as here:
            response = await here.respond()
            with pytest.raises(openai.BadRequestError) as caught:
                await here.client.responses.retrieve(response.id, stream=True, starting_after=cast(Any, after))
            assert caught.value.code == "invalid_cursor"

    run_async(scenario())


def test_nothing_follows_the_last_event() -> None:
    async def scenario() -> None:
        async with site(talking("x")) as here:
            events = await collected(await here.respond(stream=True))
            response_id, last = events[0].response.id, events[-1].sequence_number
            assert (
                await collected(await here.client.responses.retrieve(response_id, stream=True, starting_after=last))
                == []
            )

    run_async(scenario())


def test_the_same_idempotency_key_finds_the_run_it_started() -> None:
    async def scenario() -> None:
        engine = ScriptedEngine("x")
        async with site(docs(engine)) as here:
            key = {"Idempotency-Key": "k1"}
            first, again = await here.chat(extra_headers=key), await here.chat(extra_headers=key)
            assert first.id == again.id
            assert len(engine.requests) == 1

    run_async(scenario())
