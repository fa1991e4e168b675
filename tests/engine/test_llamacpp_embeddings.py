"""Embeddings of the embedded engine: with the real SmolLM2, and with an encoder that cannot generate."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gguf_file import PLACES, WIDTH, write_bert
from harness import Home, run_async
from headrace.engine import models
from headrace.engine.gguf import read_header
from headrace.engine.llamacpp.embeddings import in_parts, longest_text, pooling_of
from headrace.engine.llamacpp.engine import LlamaCppEngine
from headrace.engine.llamacpp.memory import need_to_embed
from headrace.engine.port import Finish, ModelRequest
from headrace.errors import ConfigError, ContextOverflow, EngineRejected
from headrace.testing.engine_contract import LONG, collect, text_of
from headrace.testing.engine_contract.embeddings import cosine

CONTEXT = 512


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    home = Home()
    yield home
    home.close()


@pytest.fixture(scope="module")
def engine(home: Home) -> Iterator[LlamaCppEngine]:
    engine = LlamaCppEngine(models.install("smollm2"), slots=1, context=CONTEXT, embeddings=True)
    home.run(engine.__aenter__())
    yield engine
    home.run(engine.__aexit__())


def near_and_far(cat: list[float], kitten: list[float], shares: list[float], market: list[float]) -> bool:
    across = max(cosine(one, other) for one in (cat, kitten) for other in (shares, market))
    return min(cosine(cat, kitten), cosine(shares, market)) > across


@pytest.mark.model
def test_near_texts_are_nearer_than_far_ones(engine: LlamaCppEngine, home: Home) -> None:
    texts = (
        "A cat sleeps on the sofa.",
        "A kitten naps on the couch.",
        "Shares fell sharply.",
        "The stock market fell.",
    )
    assert near_and_far(*home.run(engine.embed(texts)))


@pytest.mark.model
def test_near_texts_in_chinese_are_nearer_than_far_ones() -> None:
    weights = models.install("gemma") if os.environ.get("CI") else models.installed("gemma")
    if weights is None:
        pytest.skip("the small model knows no Chinese: headrace models install gemma")

    async def embed(path: Path) -> list[list[float]]:
        async with LlamaCppEngine(path, slots=1, context=CONTEXT, base=True, embeddings=True) as gemma:
            return await gemma.embed(
                ("猫在沙发上睡觉。", "小猫在长椅上打盹。", "今天股市大幅下跌。", "今天早上股票价格下降了。")
            )

    assert near_and_far(*run_async(embed(weights), deadline=120))


@pytest.mark.model
def test_a_vector_has_length_1_and_the_end_of_a_long_text_counts(engine: LlamaCppEngine, home: Home) -> None:
    """Nothing is cut off: two texts that differ in their last word only have different vectors."""
    words = "word " * (CONTEXT - 12)
    one, other = home.run(engine.embed([words + "cat", words + "market"]))
    assert sum(part * part for part in one) == pytest.approx(1.0)
    assert cosine(one, other) < 0.999


@pytest.mark.model
def test_a_text_that_does_not_fit_is_refused_with_all_beside_it(engine: LlamaCppEngine, home: Home) -> None:
    with pytest.raises(ContextOverflow):
        home.run(engine.embed(["short", "word " * (CONTEXT + 1)]))
    assert len(home.run(engine.embed(["short"]))) == 1


@pytest.mark.model
def test_embedding_takes_nothing_of_the_cached_prompts(engine: LlamaCppEngine, home: Home) -> None:
    """With one slot, a text that took it would be read in its place."""
    request = ModelRequest(prompt="The quick brown fox jumps over the lazy dog. " * 8, max_tokens=2)

    async def scenario() -> int:
        await collect(engine, request)
        await engine.embed(["A text of quite another kind."] * 3)
        finish = (await collect(engine, request))[-1]
        assert isinstance(finish, Finish)
        return finish.usage.cached_tokens

    assert home.run(scenario()) > 60


@pytest.mark.model
def test_what_is_said_at_temperature_0_is_the_same_with_embeddings_and_without(
    engine: LlamaCppEngine, home: Home
) -> None:
    request = ModelRequest(prompt="The capital of France is", max_tokens=24, temperature=0.0)

    async def without() -> str:
        async with LlamaCppEngine(models.install("smollm2"), slots=1, context=CONTEXT) as plain:
            with pytest.raises(EngineRejected, match="no embeddings"):
                await plain.embed(["a"])
            return text_of(await collect(plain, request))

    assert text_of(home.run(collect(engine, request))) == home.run(without())


@pytest.mark.model
def test_an_answer_ends_while_many_texts_are_embedded(engine: LlamaCppEngine, home: Home) -> None:
    async def scenario() -> None:
        many = asyncio.ensure_future(engine.embed([f"Text number {number}." for number in range(400)]))
        await collect(engine)
        assert not many.done(), "the answer had to wait for all of them"
        many.cancel()
        await asyncio.wait([many])

    home.run(scenario())


@pytest.mark.model
def test_texts_are_embedded_while_a_long_answer_is_given(engine: LlamaCppEngine, home: Home) -> None:
    """The only slot is taken, and they need none."""

    async def scenario() -> None:
        async with engine.stream(LONG) as chunks:
            await anext(chunks)
            assert len(await engine.embed(["a", "b"])) == 2
            assert not isinstance(await anext(chunks), Finish)

    home.run(scenario())


@pytest.mark.model
def test_texts_whose_process_dies_are_embedded_by_the_next_one(engine: LlamaCppEngine, home: Home) -> None:
    async def scenario() -> None:
        texts = ["word " * 200, "text " * 200]
        asking = asyncio.ensure_future(engine.embed(texts))
        while not await engine.busy_slots():  # noqa: ASYNC110 - the server can only be asked
            await asyncio.sleep(0.01)
        assert engine.pid is not None
        before = engine.pid
        os.kill(before, signal.SIGKILL)
        assert len(await asking) == 2
        assert engine.pid != before

    home.run(scenario())


@pytest.mark.model
def test_a_model_that_only_embeds_says_so_and_refuses_to_generate(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")

    async def scenario() -> None:
        async with LlamaCppEngine(write_bert(tmp_path / "bert.gguf"), log=tmp_path / "log") as engine:
            able = engine.capabilities
            assert (able.embeddings, able.context_tokens, able.tools) == (True, PLACES, False)
            with pytest.raises(EngineRejected, match="cannot generate"):
                await collect(engine)
            first, other, again = await engine.embed(["a cat", "猫 沙发", "a cat"])
            assert len(first) == WIDTH
            assert cosine(first, again) == pytest.approx(1.0) != cosine(first, other)
            assert len(await engine.embed(["a " * (PLACES - 2)])) == 1
            with pytest.raises(ContextOverflow):
                await engine.embed(["a " * (PLACES - 1)])
            assert engine.restarts == 0

    run_async(scenario(), deadline=60)


# Without a model


def test_an_encoder_has_no_places_beyond_its_training_and_pools_as_its_header_says(tmp_path: Path) -> None:
    header = read_header(write_bert(tmp_path / "bert.gguf"))
    assert (longest_text(header, 2048), longest_text(header, 16), pooling_of(header)) == (PLACES, 16, "mean")
    assert pooling_of(read_header(write_bert(tmp_path / "undeclared.gguf", pooling=0))) == "mean"
    assert (
        need_to_embed(header, longest=64, pooling="mean").total > need_to_embed(header, longest=8, pooling="mean").total
    )


def test_a_model_that_ranks_texts_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")

    async def enter() -> None:
        async with LlamaCppEngine(write_bert(tmp_path / "ranks.gguf", pooling=4)):
            pass

    with pytest.raises(ConfigError, match="ranks texts"):
        run_async(enter())


def test_many_texts_are_asked_for_in_parts_and_in_their_order() -> None:
    texts = ["a" * 3000, *("b" * 10 for _ in range(40)), "c" * 2040, "d" * 10]
    parts = list(in_parts(texts))
    assert [text for part in parts for text in part] == texts
    assert [len(part) for part in parts] == [1, 16, 16, 8, 1, 1]
    assert list(in_parts([])) == []
