import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from harness import run_async, until
from headrace import Agent
from headrace.agent.app import App
from headrace.agent.own import as_agent
from headrace.agent.port import RunContext
from headrace.errors import AgentFailed, ConfigError
from headrace.events import Event, RunErrored, RunFinished, SourceCited, TextDelta
from recording import begin


def test_a_generator_is_an_agent_its_texts_are_deltas_and_its_output() -> None:
    @as_agent(name="greeter")
    async def greeter(context: RunContext) -> AsyncGenerator[Event | str, None]:
        """Says hello.

        Nicely.
        """
        yield "Hello, "
        yield SourceCited(id="s", title="t")
        yield TextDelta(text=context.question)

    async def records() -> list[str]:
        out, context = begin(None, question="you")
        finished = await greeter.run(context)
        assert finished == RunFinished(status="completed", output="Hello, you")
        return out.types()

    assert run_async(records())[1:] == ["text.delta", "source.cited", "text.delta"]
    assert (greeter.name, greeter.description, greeter.resumable) == ("greeter", "Says hello.", False)


def test_the_output_of_an_agent_that_goes_on_after_a_crash_is_the_whole_text() -> None:
    @as_agent(resumable=True)
    async def counts(context: RunContext) -> AsyncGenerator[Event | str, None]:
        for number in range(len(context.state.text), 4):
            yield str(number)

    async def run() -> RunFinished:
        _, context = begin(None, earlier=[TextDelta(text="0"), TextDelta(text="1")])
        return await counts.run(context)

    assert run_async(run()).output == "0123"


def test_a_run_finished_ends_the_run_with_what_it_says() -> None:
    ended: list[bool] = []

    @as_agent()
    async def mine(context: RunContext) -> AsyncGenerator[Event | str, None]:
        try:
            yield RunFinished(status="stopped_early", output="enough")
            yield "never"
        finally:
            ended.append(True)

    async def run() -> RunFinished:
        return await mine.run(begin(None)[1])

    assert run_async(run()) == RunFinished(status="stopped_early", output="enough")
    assert ended == [True]


def test_an_agent_cannot_say_what_only_the_supervisor_may() -> None:
    @as_agent()
    async def mine(context: RunContext) -> AsyncGenerator[Event | str, None]:
        yield RunErrored(code="x", message="y")

    async def run() -> None:
        await mine.run(begin(None)[1])

    with pytest.raises(AgentFailed, match="RunErrored"):
        run_async(run())


def test_a_cancelled_generator_runs_its_finally() -> None:
    ended: list[bool] = []

    @as_agent()
    async def mine(context: RunContext) -> AsyncGenerator[Event | str, None]:
        try:
            yield "a"
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def run() -> None:
        out, context = begin(None)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(mine.run(context))
            await until(lambda: out.of(TextDelta))
            task.cancel()

    run_async(run())
    assert ended == [True]


def test_what_is_no_generator_is_refused_when_it_is_made() -> None:
    async def coroutine(context: RunContext) -> str:
        return ""

    with pytest.raises(ConfigError, match="async generator"):
        as_agent()(coroutine)  # type: ignore[arg-type]


class Charging(Agent):
    """Somebody's own `run` around ours, which does something before it."""

    async def run(self, context: RunContext) -> RunFinished:
        return await super().run(context)


class Renamed(Agent):
    pass


class Careful(Charging):
    commits_first = True


class Around:
    """Hands everything it is asked on to another agent."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    async def run(self, context: RunContext) -> RunFinished:
        return await self._agent.run(context)


def test_the_promise_to_commit_first_is_inherited_only_with_the_run_that_keeps_it() -> None:
    around: Any = Around(Agent("around"))
    app = App(Agent("ours"), Charging("charging"), Renamed("renamed"), Careful("careful"), around)
    assert app.commits_first == {"ours", "renamed", "careful"}
