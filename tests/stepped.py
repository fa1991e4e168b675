"""What is tested alike of every engine that computes step by step: it keeps the contract, shares its places, and comes
back when it has died. Each test class is given one open engine with three slots of 512 tokens."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from embedded import kill_in_the_middle
from harness import Home
from headrace.engine.port import Chunk, Engine, Finish, ModelRequest, Text
from headrace.engine.stepped.engine import SteppedEngine
from headrace.engine.stepped.lines import Seen
from headrace.errors import ContextOverflow, EngineRejected
from headrace.messages import Message
from headrace.testing.engine_contract import LONG, EngineContract, collect, text_of

ASK = (Message(role="user", content="Answer."),)
ENDLESS = ModelRequest(prompt="One two three", grammar='root ::= (" " [a-z]+)+', max_tokens=400)
"""An answer that never ends by itself."""
STORY = ModelRequest(messages=LONG.messages, max_tokens=40, temperature=0.0)


async def occupied(engine: SteppedEngine, seen: Seen) -> None:
    while await engine.occupancy() != seen:  # noqa: ASYNC110 - the process can only be asked
        await asyncio.sleep(0.01)


async def is_idle(engine: SteppedEngine) -> None:
    await occupied(engine, Seen(0, 0))


async def read_to_the_end(chunks: AsyncIterator[Chunk]) -> list[Chunk]:
    return [chunk async for chunk in chunks]


class SteppedContract(EngineContract):
    """`nearly_full` is a prompt that leaves the context little room."""

    shared: SteppedEngine
    home: Home
    nearly_full: str

    def run(self, test: Coroutine[Any, Any, None]) -> None:
        self.home.run(test)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Engine]:
        yield self.shared
        await is_idle(self.shared)

    async def idle(self, engine: Engine) -> None:
        await is_idle(self.shared)

    def test_a_grammar_a_regex_and_a_schema_shape_the_answer(self) -> None:
        schema = {"type": "object", "properties": {"a": {"const": 7}}, "required": ["a"], "additionalProperties": False}
        grammar = 'root ::= "foo bar " ("帮" | "día" | "😀")'
        answers = [
            text_of(self.home.run(collect(self.shared, request)))
            for request in (
                ModelRequest(messages=ASK, grammar=grammar, max_tokens=30),
                ModelRequest(prompt="Once", grammar=grammar, max_tokens=30),
                ModelRequest(messages=ASK, regex=r"\d{3}-[ab]", max_tokens=30),
                ModelRequest(messages=ASK, json_schema=schema, max_tokens=200, temperature=0.0),
                ModelRequest(messages=ASK, json_schema={"enum": ["ñandú", "ÿ9"]}, max_tokens=20),
            )
        ]
        assert all(answer in ("foo bar 帮", "foo bar día", "foo bar 😀") for answer in answers[:2])
        assert answers[2][:3].isdecimal()
        assert answers[2][3:] in ("-a", "-b")
        assert json.loads(answers[3]) == {"a": 7}
        assert json.loads(answers[4]) in ("ñandú", "ÿ9")

    @pytest.mark.parametrize(
        "shape",
        [
            {"grammar": "root ::= nowhere"},
            {"grammar": 'root ::= root "a"'},
            {"regex": "("},
            {"json_schema": {"type": 5}},
            {"json_schema": {"type": "string", "pattern": "("}},
        ],
        ids=str,
    )
    def test_a_shape_that_cannot_be_compiled_is_refused_and_no_other_answer_notices(
        self, shape: dict[str, Any]
    ) -> None:
        """In the library it fails the step of all, and every step after it."""

        async def scenario() -> None:
            async with self.shared.stream(STORY) as chunks:
                first = await anext(chunks)
                with pytest.raises(EngineRejected):
                    await collect(self.shared, ModelRequest(messages=ASK, **shape))
                rest = await read_to_the_end(chunks)
            assert isinstance(rest[-1], Finish)
            assert len(text_of([first, *rest])) > len(text_of([first]))
            assert self.shared.restarts == 0

        self.home.run(scenario())

    @pytest.mark.parametrize("stop", ["beta gamma", "ta ga", "lta", "a b"])
    def test_a_stop_string_is_not_part_of_the_answer_wherever_it_lies(self, stop: str) -> None:
        said = "alpha beta gamma delta"
        request = ModelRequest(messages=ASK, grammar=f'root ::= "{said}"', stop=(stop, "never"), max_tokens=40)
        chunks = self.home.run(collect(self.shared, request))
        assert text_of(chunks) == said[: said.index(stop)]
        assert isinstance(chunks[-1], Finish)
        assert chunks[-1].reason == "stop"

    def test_characters_of_many_tokens_come_whole(self) -> None:
        said = "👩‍👩‍👧‍👦 你好，世界 é 🇩🇪 ñandú"
        chunks = self.home.run(
            collect(self.shared, ModelRequest(messages=ASK, grammar=f'root ::= "{said}"', max_tokens=120))
        )
        assert text_of(chunks) == said
        pieces = [chunk.text for chunk in chunks if isinstance(chunk, Text)]
        assert len(pieces) > 8
        assert all("\ufffd" not in piece for piece in pieces)

    def test_leaving_while_a_long_prompt_is_read_frees_the_place(self) -> None:
        async def scenario() -> None:
            request = ModelRequest(prompt=" ".join(str(number) for number in range(150)), max_tokens=4)
            async with self.shared.stream(request) as chunks:
                reader = asyncio.ensure_future(read_to_the_end(chunks))
                await occupied(self.shared, Seen(1, 0))
                reader.cancel()
                await asyncio.wait([reader])
            await is_idle(self.shared)

        self.home.run(scenario())

    def test_a_prompt_that_does_not_fit_is_a_context_overflow(self) -> None:
        with pytest.raises(ContextOverflow, match="512"):
            self.home.run(collect(self.shared, ModelRequest(prompt="word " * 2000)))

    def test_a_full_context_ends_with_length_instead_of_hanging(self) -> None:
        request = msgspec.structs.replace(ENDLESS, prompt=self.nearly_full, max_tokens=1000)
        finish = self.home.run(collect(self.shared, request))[-1]
        assert isinstance(finish, Finish)
        assert finish.reason == "length"
        assert finish.usage.input_tokens + finish.usage.output_tokens == 512

    def test_a_penalty_and_a_temperature_change_what_is_said(self) -> None:
        banana = ModelRequest(prompt="BANANA " * 20, max_tokens=16, temperature=0.0)
        plain = text_of(self.home.run(collect(self.shared, banana)))
        punished = msgspec.structs.replace(banana, presence_penalty=2.0, repetition_penalty=1.5)
        assert text_of(self.home.run(collect(self.shared, punished))) != plain
        warm = msgspec.structs.replace(banana, temperature=2.0, top_p=0.99)
        assert {text_of(self.home.run(collect(self.shared, warm))) for _ in range(3)} != {plain}

    def test_the_loop_goes_on_turning_while_the_engine_works(self) -> None:
        async def scenario() -> None:
            arrived: list[int] = []
            reader = asyncio.ensure_future(self._listen(arrived, lambda: ticks))
            ticks = 0
            while not reader.done():
                ticks += 1
                await asyncio.sleep(0)
            await reader
            assert arrived[-1] - arrived[0] > 10 * len(arrived), "a loop that computes turns a few times for each token"

        self.home.run(scenario())

    async def _listen(self, arrived: list[int], now: Callable[[], int]) -> None:
        async with self.shared.stream(ModelRequest(prompt="Once upon", max_tokens=60)) as chunks:
            arrived += [now() async for _ in chunks]

    def test_nothing_that_was_asked_stands_on_the_command_line(self) -> None:
        assert self.shared.pid is not None
        assert os.getpgid(self.shared.pid) == self.shared.pid
        assert os.getsid(self.shared.pid) == os.getsid(0)
        if sys.platform == "linux":
            assert b"gguf" not in Path(f"/proc/{self.shared.pid}/cmdline").read_bytes()

    def test_a_killed_engine_breaks_its_streams_and_comes_back(self) -> None:
        self.home.run(kill_in_the_middle(self.shared, ENDLESS))
