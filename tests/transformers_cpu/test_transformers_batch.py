"""Transformers' own continuous batching: one batch of all answers, each with its own choices."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from embedded import leave_no_orphan
from fairness import heard_beside
from harness import Home, run_async
from headrace.engine.port import Finish, ModelRequest
from headrace.engine.transformers.engine import TransformersEngine
from headrace.engine.transformers.model.paged import PROMPT_TOKENS
from headrace.errors import EngineRejected
from headrace.messages import Message, Usage
from headrace.testing.engine_contract import REQUEST, collect, text_of
from stepped import SteppedContract

WARM = msgspec.structs.replace(REQUEST, temperature=1.5, seed=11)


@pytest.fixture(scope="module")
def shared(tiny: Path, home: Home) -> Iterator[TransformersEngine]:
    engine = TransformersEngine(tiny, slots=3, context=512, restart_wait=120.0)
    home.run(engine.__aenter__())
    yield engine
    home.run(engine.__aexit__())


class TestTransformers(SteppedContract):
    nearly_full = "a " * 220

    @pytest.fixture(autouse=True)
    def _shared(self, shared: TransformersEngine, home: Home) -> None:
        self.shared, self.home = shared, home


def said(home: Home, engine: TransformersEngine, request: ModelRequest) -> str:
    return text_of(home.run(collect(engine, request)))


def test_a_seed_says_the_same_again_whoever_else_is_answered(shared: TransformersEngine, home: Home) -> None:
    async def beside_others() -> str:
        others = [collect(shared, msgspec.structs.replace(WARM, seed=seed)) for seed in (12, 13)]
        answer, *different = await asyncio.gather(collect(shared, WARM), *others)
        assert text_of(answer) not in [text_of(other) for other in different]
        return text_of(answer)

    assert home.run(beside_others()) == said(home, shared, WARM)


def test_without_a_seed_every_answer_is_another(shared: TransformersEngine, home: Home) -> None:
    unseeded = msgspec.structs.replace(WARM, seed=None)
    assert len({said(home, shared, unseeded) for _ in range(3)}) > 1


def test_a_token_that_is_banned_is_never_said(shared: TransformersEngine, home: Home) -> None:
    digits = msgspec.structs.replace(REQUEST, grammar='root ::= "7" | "8"', max_tokens=4)
    seven, eight = ord("7") - 0x21, ord("8") - 0x21
    for banned, left in ((seven, "8"), (eight, "7")):
        assert said(home, shared, msgspec.structs.replace(digits, logit_bias={banned: -100.0})) == left


@pytest.mark.parametrize(
    "nonsense",
    [
        {"temperature": -1.0},
        {"top_p": 1.5},
        {"min_p": -0.1},
        {"repetition_penalty": 0.0},
        {"presence_penalty": 1e9},
        {"logit_bias": {10**6: 1.0}},
        {"logit_bias": {1: 1e6}},
        {"seed": -(2**63) - 1},
    ],
    ids=str,
)
def test_numbers_that_make_no_sense_are_refused_and_harm_nobody(
    shared: TransformersEngine, home: Home, nonsense: dict[str, object]
) -> None:
    before = shared.restarts
    with pytest.raises(EngineRejected):
        home.run(collect(shared, msgspec.structs.replace(REQUEST, **nonsense)))
    assert said(home, shared, REQUEST)
    assert shared.restarts == before


def test_answers_with_one_beginning_are_the_ones_they_are_alone(shared: TransformersEngine, home: Home) -> None:
    """They share pages of the cache."""
    start = "The licence says what everybody may do with this work and what nobody may do with it. " * 3
    asked = [ModelRequest(prompt=start + end, max_tokens=12, temperature=0.0) for end in ("Do", "Not", "It")]

    async def together() -> list[str]:
        return [text_of(answer) for answer in await asyncio.gather(*(collect(shared, one) for one in asked))]

    alone = [said(home, shared, one) for one in asked]
    assert home.run(together()) == alone
    assert len(set(alone)) == 3


def used(home: Home, engine: TransformersEngine, request: ModelRequest) -> tuple[str, Usage]:
    chunks = home.run(collect(engine, request))
    assert isinstance(chunks[-1], Finish)
    return text_of(chunks), chunks[-1].usage


def test_the_second_turn_of_a_thread_reads_only_what_is_new(shared: TransformersEngine, home: Home) -> None:
    asked = Message(role="user", content="What may nobody do with this work? " * 8)
    answer, first = used(home, shared, ModelRequest(messages=(asked,), max_tokens=40, temperature=0.0))
    thread = (asked, Message(role="assistant", content=answer), Message(role="user", content="And you?"))
    _, second = used(home, shared, ModelRequest(messages=thread, max_tokens=4, temperature=0.0))
    assert first.cached_tokens == 0
    assert first.input_tokens - 32 < second.cached_tokens < second.input_tokens
    assert second.cached_tokens % 32 == 0, "whole pages"


def test_an_answer_goes_on_while_a_long_prompt_is_read(tiny: Path) -> None:
    async def scenario() -> None:
        async with TransformersEngine(tiny, slots=2, context=2048) as engine:
            heard, tokens = await heard_beside(engine, "such Derivative Works in Source or Object form " * 190)
        assert tokens >= 1500
        assert heard >= tokens / (2 * PROMPT_TOKENS)

    run_async(scenario(), deadline=240)


def test_no_orphan_is_left_when_the_server_is_killed(tiny: Path) -> None:
    run_async(leave_no_orphan(TransformersEngine, tiny, signal.SIGKILL), deadline=120)
