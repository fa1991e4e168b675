"""A chain of models, and what a run records of it."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest

from harness import run_async, until
from headrace.agent.loop import Agent
from headrace.engine.fallback import Fallback
from headrace.engine.pool.pool import EnginePool
from headrace.engine.port import Capabilities, Chunk, Engine, Finish, ModelRequest, Queued, Routed, Text
from headrace.engine.scripted import Hang, Pause, ScriptedEngine, Step
from headrace.errors import (
    ConfigError,
    DeadlineExceeded,
    EngineDied,
    EngineError,
    EngineOverloaded,
    EngineRejected,
    EngineUnavailable,
    InvalidRequest,
)
from headrace.events import RouteChosen, RunQueued, TextDelta, TextRetracted, TurnContinued, TurnFinished, TurnStarted
from headrace.messages import ToolSpec
from headrace.resilience.retry import Retry
from headrace.testing.engine_contract import LONG, REQUEST, EngineContract, collect, text_of
from recording import assert_well_formed, begin
from virtual_time import run_virtually

AGENT = Agent("a", "Be brief.", retry=Retry(first=0.0))
AWAY = EngineUnavailable("refused")


class TestFallback(EngineContract):
    """The first model is away, so that the second one answers; it is the one with which the contract is kept."""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Engine]:
        alone = Capabilities(tools=True)
        self.second = ScriptedEngine(self._script, model="second", capabilities=alone)
        async with Fallback([ScriptedEngine([AWAY], model="first", capabilities=alone), self.second]) as chain:
            yield chain

    @staticmethod
    def _script(request: ModelRequest) -> list[Step]:
        words: list[Step] = [Text(f"{word} ") for word in ["one", "two", "three"]]
        return [*words, Hang()] if request == LONG else words

    def test_no_piece_is_empty_or_half_a_character(self) -> None:
        """The pieces are the second model's own; before them comes who says them."""

        async def check() -> None:
            async with self.opened() as engine:
                note, *pieces = await collect(engine)
                assert note == Routed(model="second", why="engine_unavailable", fallback_of="first")
                assert [type(piece) for piece in pieces] == [Text, Text, Text, Finish]

        self.run(check())

    async def idle(self, engine: Engine) -> None:
        await until(lambda: not self.second.open_now)


def test_the_first_model_answers_as_long_as_it_can_and_nothing_is_told() -> None:
    async def scenario() -> None:
        first, second = ScriptedEngine("Hello you", model="first"), ScriptedEngine("Hi", model="second")
        async with Fallback([first, second]) as chain:
            assert (chain.model, chain.capabilities) == ("first", first.capabilities)
            chunks = await collect(chain)
            assert text_of(chunks) == "Hello you"
            assert not any(isinstance(chunk, Routed) for chunk in chunks)
            assert second.requests == []

    run_async(scenario())


def test_models_that_cannot_do_what_is_asked_are_passed_over_and_keep_their_own_names() -> None:
    async def scenario() -> None:
        second = ScriptedEngine("no tools", model="second", capabilities=Capabilities())
        third = ScriptedEngine("Hi", model="third")
        async with Fallback([ScriptedEngine([AWAY], model="first"), second, third]) as chain:
            asked = msgspec.structs.replace(REQUEST, tools=(ToolSpec(name="clock"),), model="first-large")
            note, *_ = await collect(chain, asked)
            assert note == Routed(model="third", why="engine_unavailable", fallback_of="first")
            assert (second.requests, [request.model for request in third.requests]) == ([], [None])

    run_async(scenario())


@pytest.mark.parametrize("fault", [EngineRejected("bad request")])
def test_a_request_that_is_refused_is_not_given_to_another_model(fault: EngineRejected) -> None:
    async def scenario() -> None:
        second = ScriptedEngine("Hi")
        async with Fallback([ScriptedEngine([fault]), second]) as chain:
            with pytest.raises(EngineRejected):
                await collect(chain)
            assert second.requests == []

    run_async(scenario())


def test_when_every_model_fails_the_last_error_is_raised() -> None:
    async def scenario() -> None:
        async with Fallback([ScriptedEngine([AWAY]), ScriptedEngine([EngineOverloaded("busy")])]) as chain:
            with pytest.raises(EngineOverloaded):
                await collect(chain)

    run_async(scenario())


def test_who_waited_to_go_on_and_could_not_is_told_to_ask_for_the_whole_answer() -> None:
    class Waiting(ScriptedEngine):
        @asynccontextmanager
        async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[Chunk], None]:
            yield self._in_vain()

        async def _in_vain(self) -> AsyncIterator[Chunk]:
            yield Queued(1)
            raise AWAY

    async def scenario() -> None:
        async with Fallback([Waiting("", model="first"), ScriptedEngine("Hi", model="second")]) as chain:
            cut = msgspec.structs.replace(REQUEST, continued="I was", model="first")
            with pytest.raises(EngineRejected, match="cannot go on"):
                await collect(chain, cut)

    run_async(scenario())


def test_embeddings_are_never_made_by_another_model() -> None:
    class Embedding(ScriptedEngine):
        async def embed(self, texts: Sequence[str]) -> list[list[float]]:
            return [[1.0] for _ in texts]

    async def scenario() -> None:
        plain = ScriptedEngine("Hi", capabilities=Capabilities())
        able = Embedding("Hi", capabilities=Capabilities(embeddings=True))
        assert await Fallback([able, plain]).embed(["one", "two"]) == [[1.0], [1.0]]
        with pytest.raises(EngineRejected):
            await Fallback([plain, able]).embed(["one"])

    run_async(scenario())


def test_a_server_that_expects_a_successor_says_so_to_every_engine_that_can_wait() -> None:
    class Waiting(ScriptedEngine):
        kept = False

        def keep(self) -> None:
            self.kept = True

    waiting = Waiting("Hi")
    Fallback([ScriptedEngine([AWAY]), waiting]).keep()
    assert waiting.kept


def test_a_chain_without_a_model_is_a_mistake() -> None:
    with pytest.raises(ConfigError):
        Fallback([])


# What a run records


def test_a_run_says_which_model_answered_instead_of_which_and_why() -> None:
    async def scenario() -> None:
        chain = Fallback([ScriptedEngine([AWAY], model="large"), ScriptedEngine("Hello you", model="small")])
        out, context = begin(chain)
        finished = await AGENT.run(context)
        assert finished.output == "Hello you"
        assert out.types()[1:4] == ["turn.started", "route.chosen", "text.delta"]
        assert out.of(RouteChosen) == [RouteChosen(model="small", why="engine_unavailable", fallback_of="large")]
        assert out.of(TurnStarted) == [TurnStarted(turn=1, model="large", engine="scripted")]

    run_async(scenario())


def test_an_answer_that_the_fallback_had_begun_is_continued_by_the_fallback() -> None:
    async def scenario() -> None:
        large = ScriptedEngine(scripts=[[AWAY], "never asked"], model="large")
        small = ScriptedEngine(scripts=[[Text("Hello "), EngineDied("gone")], "Hello you"], model="small")
        out, context = begin(Fallback([large, small]))
        assert (await AGENT.run(context)).output == "Hello you"
        assert out.of(TextRetracted) == []
        assert len(out.of(TurnContinued)) == 1
        assert (len(large.requests), small.requests[-1].continued) == (1, "Hello ")

    run_async(scenario())


def test_an_answer_whose_model_is_gone_is_taken_back_and_given_by_another_one() -> None:
    async def scenario() -> None:
        lives: Iterator[list[Step] | EngineError] = iter([[Text("One "), EngineDied("gone")], AWAY, AWAY])

        def live(_: ModelRequest) -> list[Step]:
            step = next(lives)
            if isinstance(step, EngineError):
                raise step
            return step

        large = ScriptedEngine(live, model="large")
        small = ScriptedEngine("Hello you", model="small")
        out, context = begin(Fallback([large, small]))
        assert (await AGENT.run(context)).output == "Hello you"
        assert [request.continued for request in large.requests] == [None, "One ", None]
        assert [event.reason for event in out.of(TextRetracted)] == ["engine_rejected"]
        assert out.state().text == "Hello you"
        assert_well_formed(out.events)

    run_async(scenario())


def test_a_worker_that_takes_over_lets_nobody_continue_what_another_model_had_begun() -> None:
    async def scenario() -> None:
        earlier = [
            TurnStarted(turn=1, model="large", engine="scripted"),
            RouteChosen(model="small", why="engine_unavailable", fallback_of="large"),
            TextDelta(text="Hello "),
        ]
        out, context = begin(ScriptedEngine("One two", model="large"), earlier=earlier)
        assert (await AGENT.run(context)).output == "One two"
        assert [event.reason for event in out.of(TextRetracted)] == ["recovered"]

    run_async(scenario())


def test_a_run_in_the_line_of_its_engine_is_queued_until_it_is_its_turn() -> None:
    async def scenario() -> None:
        slow = ScriptedEngine(lambda request: "Hi" if request.max_tokens == 1 else [Pause(3.0), Text("done")])
        async with EnginePool({"a": slow}, limit=1) as pool, asyncio.TaskGroup() as group:
            ahead = group.create_task(collect(pool))
            out, context = begin(pool)
            running = group.create_task(AGENT.run(context))
            await asyncio.sleep(1.0)
            assert not ahead.done()
            assert (out.state().status, out.state().queue_position) == ("queued", 1)
            await asyncio.sleep(3.0)
            assert (out.state().status, out.state().queue_position) == ("running", None)
            await running
            assert out.types()[1:] == ["turn.started", "run.queued", "run.queued", "text.delta", "turn.finished"]
            assert out.of(RunQueued) == [RunQueued(position=1), RunQueued(position=0)]
            (finished,) = out.of(TurnFinished)
            assert (finished.timing.queued_ms, finished.timing.first_token_ms) == (3000, 6000)

    run_virtually(scenario())


def test_a_run_whose_deadline_passes_in_the_line_ends_and_leaves_it() -> None:
    async def scenario() -> None:
        slow = ScriptedEngine(lambda request: "Hi" if request.max_tokens == 1 else [Pause(30.0), Text("done")])
        async with EnginePool({"a": slow}, limit=1) as pool, asyncio.TaskGroup() as group:
            ahead = group.create_task(collect(pool))
            await asyncio.sleep(1.0)
            out, context = begin(pool, deadline=asyncio.get_running_loop().time() + 5.0)
            with pytest.raises(DeadlineExceeded):
                await AGENT.run(context)
            assert (pool.waiting, ahead.done()) == (0, False)
            assert_well_formed(out.events)

    run_virtually(scenario())


def test_a_run_that_was_queued_when_its_worker_was_lost_is_running_again() -> None:
    async def scenario() -> None:
        earlier = [TurnStarted(turn=1, model="scripted", engine="scripted"), RunQueued(position=7)]
        out, context = begin(ScriptedEngine("Hello you"), earlier=earlier)
        await AGENT.run(context)
        assert out.of(RunQueued)[-1] == RunQueued(position=0)
        assert (out.state().status, out.state().queue_position) == ("running", None)

    run_async(scenario())


def test_a_run_whose_attempt_failed_in_the_line_is_running_once_another_one_speaks() -> None:
    async def scenario() -> None:
        out, context = begin(ScriptedEngine(scripts=[[Queued(2), AWAY], "Hello you"]))
        assert (await AGENT.run(context)).output == "Hello you"
        assert out.of(RunQueued) == [RunQueued(position=2), RunQueued(position=0)]
        assert out.state().queue_position is None

    run_async(scenario())


def test_priority_is_an_option_of_a_run() -> None:
    async def scenario() -> None:
        engine = ScriptedEngine("Hello you")
        _, context = begin(engine, options={"priority": 5})
        await AGENT.run(context)
        assert engine.requests[0].priority == 5
        _, pushy = begin(engine, options={"priority": -1})
        with pytest.raises(InvalidRequest, match="priority"):
            await AGENT.run(pushy)

    run_async(scenario())
