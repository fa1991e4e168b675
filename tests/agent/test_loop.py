import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from harness import run_async
from headrace.agent.loop import Agent
from headrace.engine.port import Chunk, Finish, ModelRequest, Text, Thinking, ToolCallPart
from headrace.engine.scripted import Script, ScriptedEngine
from headrace.errors import ConfigError, InvalidRequest, TurnLimit
from headrace.events import (
    ArgsDelta,
    RunFinished,
    TextDelta,
    ThinkingDelta,
    ToolCallEnded,
    ToolProgress,
    ToolResult,
    TurnFinished,
    TurnStarted,
)
from headrace.messages import Message, ToolSpec, Usage
from headrace.state import conversation
from headrace.tools.function import tool
from headrace.tools.port import ToolContext
from recording import LiveEngine, Recording, assert_well_formed, begin, tool_call


@tool(effect="none")
async def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@tool(effect="none")
async def boom() -> None:
    """Fails."""
    raise ValueError("broken")


def play(agent: Agent, engine: Any, **more: Any) -> tuple[Recording, RunFinished]:
    async def run() -> tuple[Recording, RunFinished]:
        out, context = begin(engine, **more)
        finished = await agent.run(context)
        assert_well_formed(out.events, ended="client_tools" not in more)
        return out, finished

    return run_async(run())


def test_what_the_model_says_is_recorded_token_by_token() -> None:
    engine = ScriptedEngine([Thinking("hm"), Text("Hello "), Text("you")])
    out, finished = play(Agent("a", "Be kind."), engine)
    assert out.types()[1:] == ["turn.started", "thinking.delta", "text.delta", "text.delta", "turn.finished"]
    assert out.of(TurnStarted) == [TurnStarted(turn=1, model="scripted", engine="scripted")]
    assert out.of(ThinkingDelta)[0].text == "hm"
    assert (finished.status, finished.output, finished.finish_reason) == ("completed", "Hello you", "stop")
    assert engine.requests[0].messages == (
        Message(role="system", content="Be kind."),
        Message(role="user", content="Hi"),
    )
    assert engine.open_now == 0


def test_the_calls_of_a_turn_run_at_the_same_time_and_the_model_reads_them_in_call_order() -> None:
    meeting = asyncio.Barrier(2)
    second_is_done = asyncio.Event()

    @tool(effect="none")
    async def first() -> str:
        await meeting.wait()
        await second_is_done.wait()
        return "one"

    @tool(effect="none")
    async def second() -> str:
        await meeting.wait()
        second_is_done.set()
        return "two"

    engine = ScriptedEngine(scripts=[[tool_call(0, "first"), tool_call(1, "second")], "done"])
    out, _ = play(Agent("a", tools=[first, second]), engine)
    assert [out.number(result.call_id) for result in out.of(ToolResult)] == [1, 0]
    answers = [(out.number(m.call_id), m.content) for m in engine.requests[1].messages if m.role == "tool"]
    assert answers == [(0, "one"), (1, "two")]


def test_a_call_starts_while_the_model_is_still_speaking() -> None:
    ran = asyncio.Event()

    @tool(effect="none")
    async def early() -> None:
        ran.set()

    async def speak(request: ModelRequest) -> AsyncGenerator[Chunk, None]:
        if len(request.messages) > 1:
            yield Text("done")
            yield Finish(reason="stop")
            return
        yield tool_call(0, "early")
        yield ToolCallPart(index=1, call_id="c1", name="early", arguments="")
        await ran.wait()  # the first call, whose arguments are whole, runs before this answer ends
        yield ToolCallPart(index=1, arguments="{}")
        yield Finish(reason="tool_calls")

    out, _ = play(Agent("a", tools=[early]), LiveEngine(speak))
    types = out.types()
    assert types.index("tool.result") < types.index("turn.finished")


def test_a_call_is_durable_before_its_tool_starts() -> None:
    durable: list[int] = []
    out_of_run: list[Recording] = []

    @tool
    async def pays() -> None:
        durable.append(out_of_run[0].durable)

    async def run() -> None:
        engine = ScriptedEngine(scripts=[[tool_call(0, "pays"), tool_call(1, "pays")], "done"])
        out, context = begin(engine)
        out_of_run.append(out)
        await Agent("a", tools=[pays]).run(context)
        ended = [at for at, event in enumerate(out.events, 1) if isinstance(event, ToolCallEnded)]
        assert durable[0] >= ended[0]
        assert durable[1] >= ended[1]

    run_async(run())


def test_a_failing_an_invalid_and_an_unknown_call_are_errors_the_model_reads_and_lose_no_sibling() -> None:
    calls = [
        tool_call(0, "add", '{"a":1}'),
        tool_call(1, "boom"),
        tool_call(2, "add", '{"a":"x"}'),
        tool_call(3, "nothing"),
        tool_call(4, "add", '{"a":'),
        tool_call(5, "add", '{"a":5}'),
    ]
    engine = ScriptedEngine(scripts=[calls, "done"])
    out, finished = play(Agent("a", tools=[add, boom]), engine)
    results = {out.number(result.call_id): result for result in out.of(ToolResult)}
    codes = {call_id: result.error.code for call_id, result in results.items() if result.error}
    assert codes == {
        1: "tool_failed",
        2: "invalid_arguments",
        3: "unknown_tool",
        4: "invalid_arguments",
    }
    assert (results[0].result, results[5].result) == (2, 6)
    assert [out.number(event.call_id) for event in out.of(ToolCallEnded)] == [0, 1, 5]
    answers = {out.number(m.call_id): m.content for m in engine.requests[1].messages if m.role == "tool"}
    assert list(answers) == list(range(6))
    assert "The tools are: add, boom." in answers[3]
    assert '{"a":' in answers[4]
    assert finished.output == "done"


def test_what_a_later_run_reads_is_what_the_model_read() -> None:
    engine = ScriptedEngine(
        scripts=[[Text("Let me see. "), tool_call(0, "add", '{"a":1}'), tool_call(1, "add", "[]")], "It is 2."]
    )
    out, _ = play(Agent("a", tools=[add]), engine)
    assert conversation(out.state())[:-1] == engine.requests[1].messages


def test_each_prompt_begins_with_the_one_before_and_tools_are_sorted() -> None:
    engine = ScriptedEngine(scripts=[[tool_call(0, "add", '{"a":1}')], [tool_call(0, "boom")], "done"])
    history = (Message(role="user", content="before"), Message(role="assistant", content="yes"))
    play(Agent("a", "Rules.", tools=[boom, add]), engine, history=history)
    first, second, third = engine.requests
    assert first.messages[:3] == (Message(role="system", content="Rules."), *history)
    assert second.messages[: len(first.messages)] == first.messages
    assert third.messages[: len(second.messages)] == second.messages
    assert first.tools == second.tools == third.tools
    assert [spec.name for spec in first.tools] == ["add", "boom"]
    assert len({request.request_id for request in engine.requests}) == 3
    assert {request.session for request in engine.requests} == {"t1"}


def test_a_tail_stands_last_and_leaves_the_prefix_alone() -> None:
    engine = ScriptedEngine(scripts=[[tool_call(0, "add", '{"a":1}')], "done"])
    dates = iter(["Monday", "Tuesday"])
    play(Agent("a", "Rules.", tools=[add], tail=lambda context: next(dates)), engine)
    first, second = engine.requests
    assert [r.messages[-1].content for r in engine.requests] == ["Monday", "Tuesday"]
    assert second.messages[: len(first.messages) - 1] == first.messages[:-1]


def test_engines_that_count_call_ids_anew_in_each_turn_get_other_ones() -> None:
    engine = ScriptedEngine(scripts=[[tool_call(0, "add", '{"a":1}')], [tool_call(0, "add", '{"a":2}')], "done"])
    out, _ = play(Agent("a", tools=[add]), engine)
    assert len(set(out.calls())) == 2
    assert [result.result for result in out.of(ToolResult)] == [2, 3]


def test_arguments_are_streamed_only_when_asked_for() -> None:
    script = [
        ToolCallPart(index=0, call_id="c0", name="add"),
        ToolCallPart(index=0, arguments='{"a"'),
        ToolCallPart(index=0, arguments=":1}"),
    ]
    quiet, _ = play(Agent("a", tools=[add]), ScriptedEngine(scripts=[script, "done"]))
    assert quiet.of(ArgsDelta) == []
    loud, _ = play(
        Agent("a", tools=[add]), ScriptedEngine(scripts=[script, "done"]), options={"stream_arguments": True}
    )
    assert [event.delta for event in loud.of(ArgsDelta)] == ['{"a"', ":1}"]


def test_progress_is_recorded_between_the_call_and_its_result() -> None:
    @tool(effect="none")
    def counts(context: ToolContext) -> str:
        for n in range(3):
            context.progress(n)
        return context.call_id

    out, _ = play(Agent("a", tools=[counts]), ScriptedEngine(scripts=[[tool_call(0, "counts")], "done"]))
    assert [event.data for event in out.of(ToolProgress)] == [0, 1, 2]
    assert [result.result for result in out.of(ToolResult)] == out.calls()


def test_calls_that_touch_what_another_writes_run_in_call_order() -> None:
    happened: list[str] = []

    @tool(writes=["file"])
    async def write() -> None:
        happened.append("write begins")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        happened.append("write ends")

    @tool(effect="none", reads=["file"])
    async def read() -> None:
        happened.append("read")

    script = [tool_call(0, "write"), tool_call(1, "read"), tool_call(2, "read"), tool_call(3, "write")]
    play(Agent("a", tools=[write, read]), ScriptedEngine(scripts=[script, "done"]))
    assert happened == ["write begins", "write ends", "read", "read", "write begins", "write ends"]


def test_parallel_tool_calls_false_runs_one_call_after_the_other() -> None:
    running = 0
    most = 0

    @tool(effect="none")
    async def busy() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(50):  # as many ticks as it takes the others to begin, if they may
            await asyncio.sleep(0)
        running -= 1

    script = [tool_call(n, "busy") for n in range(3)]
    agent = Agent("a", tools=[busy])
    play(agent, ScriptedEngine(scripts=[script, "done"]))
    assert most == 3
    most = 0
    play(agent, ScriptedEngine(scripts=[script, "done"]), options={"parallel_tool_calls": False})
    assert most == 1


def test_after_its_turns_the_model_is_asked_for_words_and_the_run_stops_early() -> None:
    def script(request: ModelRequest) -> Any:
        return "That is all I know." if request.tool_choice == "none" else [tool_call(0, "add", '{"a":1}')]

    engine = ScriptedEngine(script)
    out, finished = play(Agent("a", tools=[add], max_turns=2), engine)
    assert len(engine.requests) == 3
    assert engine.requests[-1].tools == engine.requests[0].tools
    assert (finished.status, finished.output) == ("stopped_early", "That is all I know.")
    assert len(out.of(ToolResult)) == 2


def test_a_model_that_calls_even_then_is_refused_and_the_run_fails_with_the_limit() -> None:
    async def run() -> Recording:
        out, context = begin(ScriptedEngine(lambda request: [tool_call(0, "add", '{"a":1}')]))
        with pytest.raises(TurnLimit):
            await Agent("a", tools=[add], max_turns=2).run(context)
        return out

    out = run_async(run())
    assert_well_formed(out.events)
    assert [r.error.code if r.error else None for r in out.of(ToolResult)] == [None, None, "turn_limit"]


def test_calls_of_the_clients_own_tools_end_the_run_for_the_client_to_answer() -> None:
    client = (ToolSpec(name="open_door", parameters={"type": "object"}),)
    engine = ScriptedEngine([tool_call(0, "open_door", '{"n":1}'), tool_call(1, "add", '{"a":1}')])
    out, finished = play(Agent("a", tools=[add]), engine, client_tools=client)
    assert (finished.status, finished.finish_reason) == ("completed", "tool_calls")
    assert [call.call_id for call in out.of(ToolCallEnded)] == out.calls()
    assert [result.call_id for result in out.of(ToolResult)] == out.calls()[1:]
    assert [spec.name for spec in engine.requests[0].tools] == ["add", "open_door"]


def test_a_client_call_with_broken_arguments_goes_back_to_the_model() -> None:
    client = (ToolSpec(name="open_door", parameters={"type": "object"}),)
    engine = ScriptedEngine(scripts=[[tool_call(0, "open_door", '{"n"')], "sorry"])
    _, finished = play(Agent("a"), engine, client_tools=client)
    assert finished.finish_reason == "stop"
    assert finished.output == "sorry"


def test_usage_and_timing_are_those_of_the_whole_run() -> None:
    scripts: list[Script] = [
        [tool_call(0, "add", '{"a":1}'), Finish(reason="tool_calls", usage=Usage(input_tokens=5, output_tokens=2))],
        [Text("x"), Finish(reason="length", usage=Usage(input_tokens=9, output_tokens=1, cached_tokens=5))],
    ]
    out, finished = play(Agent("a", tools=[add]), ScriptedEngine(scripts=scripts))
    assert finished.usage == Usage(input_tokens=14, output_tokens=3, cached_tokens=5)
    assert finished.finish_reason == "length"
    assert finished.timing.first_token_ms is not None
    assert finished.timing.total_ms >= finished.timing.first_token_ms
    assert [turn.finish_reason for turn in out.of(TurnFinished)] == ["tool_calls", "length"]


def test_model_options_reach_the_engine() -> None:
    engine = ScriptedEngine("ok")
    options = {"temperature": 0, "max_tokens": 7, "stop": "END", "seed": 3, "json_schema": {"type": "object"}, "x": 1}
    play(Agent("a", model="m"), engine, options=options)
    request = engine.requests[0]
    assert (request.temperature, request.max_tokens, request.stop, request.seed) == (0.0, 7, ("END",), 3)
    assert request.json_schema == {"type": "object"}
    assert request.model == "m"


def test_an_option_of_the_wrong_type_starts_nothing() -> None:
    engine = ScriptedEngine("ok")
    with pytest.raises(InvalidRequest, match="temperature"):
        play(Agent("a"), engine, options={"temperature": "hot"})
    assert engine.requests == []


def test_an_agent_that_cannot_work_says_so() -> None:
    with pytest.raises(ConfigError, match="no engine"):
        play(Agent("a"), None)
    with pytest.raises(ConfigError, match="same name"):
        Agent("a", tools=[add, add])
    with pytest.raises(ConfigError, match="max_turns"):
        Agent("a", max_turns=0)


def test_no_task_is_left_when_the_run_ends() -> None:
    async def run() -> None:
        out, context = begin(ScriptedEngine(scripts=[[tool_call(0, "boom"), tool_call(1, "add", '{"a":1}')], "x"]))
        await Agent("a", tools=[add, boom]).run(context)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert len(out.of(ToolResult)) == 2

    run_async(run())


def test_a_result_reaches_the_model_as_text_or_json() -> None:
    @tool(effect="none")
    async def text() -> str:
        return "plain"

    @tool(effect="none")
    async def data() -> dict[str, int]:
        return {"n": 1}

    engine = ScriptedEngine(scripts=[[tool_call(0, "text"), tool_call(1, "data")], "ok"])
    out, _ = play(Agent("a", tools=[text, data]), engine)
    answers = [m.content for m in engine.requests[1].messages if m.role == "tool"]
    assert answers[0] == "plain"
    assert json.loads(answers[1]) == {"n": 1}
    assert out.of(TextDelta)[0].text == "ok"


def test_a_forced_call_is_forced_once() -> None:
    engine = ScriptedEngine(scripts=[[tool_call(0, "add", '{"a":1}')], "2"])
    play(Agent("a", tools=[add]), engine, options={"tool_choice": "add"})
    assert [request.tool_choice for request in engine.requests] == ["add", None]


def test_a_client_tool_cannot_take_the_name_of_one_of_the_agents() -> None:
    engine = ScriptedEngine("ok")
    with pytest.raises(InvalidRequest, match="add"):
        play(Agent("a", tools=[add]), engine, client_tools=(ToolSpec(name="add"),))
    assert engine.requests == []


def test_what_an_engine_remembers_of_a_tenants_prompts_is_that_tenants() -> None:
    scopes = []
    for tenant in ("acme", "default"):
        engine = ScriptedEngine("Hello")
        _, context = begin(engine)
        context.tenant = tenant
        run_async(Agent("a", "Be kind.").run(context))
        scopes += [request.scope for request in engine.requests]
    assert scopes == ["acme", None]
