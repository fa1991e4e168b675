"""What an engine promises that makes vectors of texts; the part of the engine contract that others pass by."""

import asyncio
from collections.abc import Sequence
from math import sqrt
from typing import ClassVar, cast

from headrace.engine.port import Embedder, Engine, Finish
from headrace.errors import EngineRejected
from headrace.testing.engine_contract.requests import collect, text_of
from headrace.testing.engine_contract.subject import Subject

_TEXTS = ("The cat sleeps.", "股市今天下跌。", "A long walk 😀", "The cat sleeps.")
_SAME = 0.999  # cosine; a server may read texts together, which moves the last digits


class EmbeddingsContract(Subject):
    """`embeds` False is for a server that could embed and whose model cannot."""

    embeds: ClassVar[bool] = True

    def _able(self, engine: Engine) -> Embedder | None:
        return cast(Embedder, engine) if self.embeds and engine.capabilities.embeddings else None

    def test_texts_become_vectors_of_one_size_in_their_order(self) -> None:
        async def check() -> None:
            async with self.opened() as engine:
                if (embedder := self._able(engine)) is None:
                    return
                first, other, *_, again = vectors = await embedder.embed(_TEXTS)
                assert len({len(vector) for vector in vectors}) == 1
                assert len(vectors) == len(_TEXTS)
                assert cosine(first, again) > _SAME > cosine(first, other)
                for text, vector in zip(_TEXTS, vectors, strict=True):
                    [alone] = await embedder.embed([text])
                    assert cosine(alone, vector) > _SAME, text

        self.run(check())

    def test_no_texts_are_no_vectors(self) -> None:
        async def check() -> None:
            async with self.opened() as engine:
                if (embedder := self._able(engine)) is not None:
                    assert await embedder.embed([]) == []

        self.run(check())

    def test_a_text_that_is_empty_or_no_unicode_is_refused(self) -> None:
        async def check() -> None:
            async with self.opened() as engine:
                if (embedder := self._able(engine)) is not None:
                    await _assert_refused(embedder, ["a", ""])
                    await _assert_refused(embedder, ["\ud800"])

        self.run(check())

    def test_an_answer_and_many_embeddings_at_once_are_whole(self) -> None:
        async def check() -> None:
            async with self.opened() as engine:
                if (embedder := self._able(engine)) is None:
                    return
                texts = [f"Text number {number}." for number in range(40)]
                alone = text_of(await collect(engine))
                answer, vectors, others = await asyncio.gather(
                    collect(engine), embedder.embed(texts), embedder.embed(texts[::-1])
                )
                assert isinstance(answer[-1], Finish)
                assert text_of(answer) == alone
                assert all(cosine(*pair) > _SAME for pair in zip(vectors, others[::-1], strict=True))

        self.run(check())

    def test_who_cancels_embeddings_leaves_the_engine_at_rest(self) -> None:
        async def check() -> None:
            async with self.opened() as engine:
                if (embedder := self._able(engine)) is None:
                    return
                asking = asyncio.ensure_future(embedder.embed(_TEXTS * 20))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                asking.cancel()
                await asyncio.wait([asking])
                assert asking.cancelled()
                await self.idle(engine)
                assert len(await embedder.embed(_TEXTS)) == len(_TEXTS)

        self.run(check())


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    product = sum(a * b for a, b in zip(one, other, strict=True))
    return product / sqrt(sum(a * a for a in one) * sum(b * b for b in other))


async def _assert_refused(embedder: Embedder, texts: list[str]) -> None:
    try:
        await embedder.embed(texts)
    except EngineRejected:
        pass
    else:
        raise AssertionError(f"{texts!r} was embedded")
