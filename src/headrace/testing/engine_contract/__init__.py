"""What every engine promises, as tests that run against any of them.

    class TestMyEngine(EngineContract):
        def opened(self): ...       # an engine that answers REQUEST with at least a few pieces, and LONG for a while
        async def idle(self, engine): ...   # returns once the server generates nothing any more

pytest finds the subclass. Each test runs on a loop of its own; override `run` for an engine that outlives a test.
"""

import asyncio

import msgspec

from headrace.engine.port import Engine, Finish, ModelRequest, Text, Thinking, ToolCallPart
from headrace.errors import EngineRejected
from headrace.messages import ToolSpec
from headrace.testing.engine_contract.embeddings import EmbeddingsContract
from headrace.testing.engine_contract.line import LineContract
from headrace.testing.engine_contract.requests import LONG, REQUEST, asking, collect, text_of

__all__ = ["LONG", "REQUEST", "EngineContract", "collect", "text_of"]


class EngineContract(EmbeddingsContract, LineContract):
    def test_an_answer_is_pieces_of_text_and_one_finish_at_the_end(self) -> None:
        async def check() -> None:
            async with self.opened() as engine:
                chunks = await collect(engine)
                assert [type(chunk) for chunk in chunks].count(Finish) == 1
                assert isinstance(chunks[-1], Finish)
                assert text_of(chunks)

        self.run(check())

    def test_no_piece_is_empty_or_half_a_character(self) -> None:
        async def check() -> None:
            async with self.opened() as engine:
                for chunk in (await collect(engine))[:-1]:
                    assert isinstance(chunk, Text | Thinking | ToolCallPart)
                    piece = chunk.arguments or chunk.name if isinstance(chunk, ToolCallPart) else chunk.text
                    assert piece
                    piece.encode()

        self.run(check())

    def test_the_finish_says_how_long_it_took_and_what_was_used(self) -> None:
        async def check() -> None:
            async with self.opened() as engine:
                finish = (await collect(engine))[-1]
                assert isinstance(finish, Finish)
                timing = finish.timing
                assert timing.first_token_ms is not None
                assert 0 <= timing.queued_ms <= timing.first_token_ms <= timing.total_ms
                assert finish.usage.input_tokens > 0
                assert finish.usage.output_tokens > 0

        self.run(check())

    def test_a_continued_answer_holds_only_what_follows_and_is_the_uncut_one_at_temperature_0(self) -> None:
        async def check() -> None:
            async with self.opened() as engine:
                if not engine.capabilities.continuation:
                    return
                *uncut, finish = await collect(engine)
                assert isinstance(finish, Finish)
                pieces = [chunk.text for chunk in uncut if isinstance(chunk, Text)]
                for cut in range(1, len(pieces)):
                    said = "".join(pieces[:cut])
                    rest = await collect(engine, msgspec.structs.replace(REQUEST, continued=said, max_tokens=16 - cut))
                    assert isinstance(rest[-1], Finish)
                    whole = said + text_of(rest)
                    assert whole.startswith(text_of(uncut)), (said, whole, text_of(uncut))
                    # On a busy machine a piece may be several tokens, and what follows is so many tokens longer.
                    assert whole == text_of(uncut) or finish.usage.output_tokens > len(pieces), (said, whole)

        self.run(check())

    def test_an_answer_ends_before_its_stop_string_wherever_that_is_cut(self) -> None:
        async def check() -> None:
            async with self.opened() as engine:
                if "stop" not in engine.capabilities.sampling:
                    return
                text = text_of(await collect(engine))
                for at in (len(text) // 2, len(text) - 3):
                    stop = text[at : at + 3]
                    chunks = await collect(engine, msgspec.structs.replace(REQUEST, stop=(stop,)))
                    assert text_of(chunks) == text[: text.index(stop)]
                    finish = chunks[-1]
                    assert isinstance(finish, Finish)
                    assert finish.reason == "stop"

        self.run(check())

    def test_leaving_after_the_first_chunk_stops_the_generation(self) -> None:
        async def check() -> None:
            async with self.opened() as engine:
                async with engine.stream(LONG) as chunks:
                    await anext(chunks)
                await self.idle(engine)

        self.run(check())

    def test_cancelling_before_the_first_chunk_stops_the_generation(self) -> None:
        async def check() -> None:
            async with self.opened() as engine:
                reader = asyncio.ensure_future(collect(engine, LONG))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                reader.cancel()
                await asyncio.wait([reader])
                assert reader.cancelled()
                await self.idle(engine)

        self.run(check())

    def test_leaving_without_reading_anything_is_allowed(self) -> None:
        async def check() -> None:
            async with self.opened() as engine:
                async with engine.stream(LONG):
                    pass
                await self.idle(engine)

        self.run(check())

    def test_an_answer_after_one_that_was_left_is_whole(self) -> None:
        async def check() -> None:
            async with self.opened() as engine:
                for _ in range(3):
                    async with engine.stream(LONG) as chunks:
                        await anext(chunks)
                assert isinstance((await collect(engine))[-1], Finish)

        self.run(check())

    def test_several_answers_at_once_are_each_whole(self) -> None:
        async def check() -> None:
            async with self.opened() as engine:
                answers = await asyncio.gather(*(collect(engine) for _ in range(6)))
                assert [type(chunks[-1]) for chunks in answers] == [Finish] * 6
                assert all(text_of(chunks) for chunks in answers)

        self.run(check())

    def test_a_consumer_that_fails_stops_the_generation_and_sees_its_own_error(self) -> None:
        async def check() -> None:
            async with self.opened() as engine:
                try:
                    await _fail_after_first(engine)
                except ZeroDivisionError:
                    await self.idle(engine)
                else:
                    raise AssertionError("the consumer's error was swallowed")

        self.run(check())

    def test_asking_for_no_tokens_is_refused(self) -> None:
        self._refuses(msgspec.structs.replace(REQUEST, max_tokens=0))
        self._refuses(msgspec.structs.replace(REQUEST, max_tokens=-1))

    def test_asking_for_nothing_or_for_both_is_refused(self) -> None:
        self._refuses(ModelRequest())
        self._refuses(msgspec.structs.replace(REQUEST, prompt="and a prompt"))
        self._refuses(msgspec.structs.replace(REQUEST, continued=""))
        self._refuses(msgspec.structs.replace(REQUEST, grammar='root ::= "a"', json_schema={"type": "object"}))
        self._refuses(msgspec.structs.replace(REQUEST, stop=("",)))
        self._refuses(msgspec.structs.replace(REQUEST, tools=(ToolSpec(name="clock"),), tool_choice="watch"))

    def test_what_it_cannot_do_is_refused_before_anything_starts(self) -> None:
        async def check() -> None:
            async with self.opened() as engine:
                for able, request in asking(engine.capabilities):
                    if not able:
                        await _assert_refused(engine, request)
                await self.idle(engine)

        self.run(check())

    def test_what_it_says_it_can_do_is_answered(self) -> None:
        async def check() -> None:
            async with self.opened() as engine:
                for able, request in asking(engine.capabilities):
                    if able:
                        assert isinstance((await collect(engine, request))[-1], Finish), request

        self.run(check())

    def _refuses(self, request: ModelRequest) -> None:
        async def check() -> None:
            async with self.opened() as engine:
                await _assert_refused(engine, request)

        self.run(check())


async def _assert_refused(engine: Engine, request: ModelRequest) -> None:
    try:
        chunks = await collect(engine, request)
    except EngineRejected:
        pass
    else:
        raise AssertionError(f"{request} was answered with {chunks}")


async def _fail_after_first(engine: Engine) -> None:
    async with engine.stream(LONG) as chunks:
        await anext(chunks)
        raise ZeroDivisionError
