"""A cache for each answer: kept in 8 bits, saved, and read again by the next process."""

import os
import signal
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest

from harness import Home
from headrace.engine.port import Finish, ModelRequest, Text
from headrace.engine.transformers.engine import TransformersEngine
from headrace.errors import EngineDied
from headrace.messages import Message
from headrace.testing.engine_contract import collect, text_of
from stepped import SteppedContract, is_idle

BYTES = dict.fromkeys(range(94, 256), -100.0)
"""Tokens that are half a character, which a random model says gladly."""
TALE = ModelRequest(
    messages=(Message(role="user", content="Tell me a tale."),), max_tokens=160, temperature=0.0, logit_bias=BYTES
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("states") / "of" / "answers"


@pytest.fixture(scope="module")
def shared(tiny: Path, home: Home, folder: Path) -> Iterator[TransformersEngine]:
    engine = TransformersEngine(
        tiny,
        weights="int8",
        kv="int8",
        slots=3,
        context=512,
        snapshot_tokens=1,
        snapshots=folder,
        restart_wait=120.0,
    )
    home.run(engine.__aenter__())
    yield engine
    home.run(engine.__aexit__())


class TestTransformersWithStates(SteppedContract):
    nearly_full = "a " * 220

    @pytest.fixture(autouse=True)
    def _shared(self, shared: TransformersEngine, home: Home) -> None:
        self.shared, self.home = shared, home


async def beginning(engine: TransformersEngine, said: list[str], *, tokens: int) -> AsyncGenerator[None, None]:
    """Listen to the tale, and give a sign when so many tokens of it have been said."""
    async with engine.stream(TALE) as chunks:
        async for chunk in chunks:
            if isinstance(chunk, Text):
                said.append(chunk.text)
            if len(said) == tokens:
                yield


async def left_after(engine: TransformersEngine, tokens: int) -> str:
    """What had been said when nobody listened any more."""
    said: list[str] = []
    async with aclosing(beginning(engine, said, tokens=tokens)) as sign:
        await anext(sign)
    await is_idle(engine)
    return "".join(said)


async def killed_after(engine: TransformersEngine, tokens: int) -> str:
    """What had been said when the process was killed."""
    said: list[str] = []
    with pytest.raises(EngineDied):
        await _kill(engine, beginning(engine, said, tokens=tokens))
    return "".join(said)


async def _kill(engine: TransformersEngine, signs: AsyncGenerator[None, None]) -> None:
    pid = engine.pid
    assert pid is not None
    async for _ in signs:
        os.kill(pid, signal.SIGKILL)


def state_in(folder: Path) -> Path:
    """That of the latest answer: those that were left have states too, for who takes them up again."""
    return max(folder.glob("*.safetensors"), key=lambda file: file.stat().st_mtime_ns)


async def gone_on(engine: TransformersEngine, said: str) -> tuple[str, Finish]:
    chunks = await collect(engine, msgspec.structs.replace(TALE, continued=said))
    finish = chunks[-1]
    assert isinstance(finish, Finish)
    return text_of(chunks), finish


def test_a_killed_answer_goes_on_from_its_saved_state_as_if_nothing_had_happened(
    shared: TransformersEngine, home: Home, folder: Path
) -> None:
    uncut = text_of(home.run(collect(shared, TALE)))
    said = home.run(killed_after(shared, 60))
    assert uncut.startswith(said)
    state = state_in(folder)
    assert state.stat().st_mode & 0o777 == 0o600

    rest, finish = home.run(gone_on(shared, said))
    assert (said + rest).startswith(uncut)
    assert finish.usage.input_tokens - 2 <= finish.usage.cached_tokens < finish.usage.input_tokens
    assert not state.exists(), "a complete answer needs no state"


def test_a_damaged_state_is_not_used(shared: TransformersEngine, home: Home, folder: Path) -> None:
    uncut = text_of(home.run(collect(shared, TALE)))
    said = home.run(left_after(shared, 40))
    state = state_in(folder)
    state.write_bytes(state.read_bytes()[:-1000])
    rest, finish = home.run(gone_on(shared, said))
    assert finish.usage.cached_tokens == 0
    assert rest
    assert uncut.startswith(said)


def test_a_conversation_that_is_another_one_gets_no_state(shared: TransformersEngine, home: Home, folder: Path) -> None:
    said = home.run(left_after(shared, 40))
    state = state_in(folder)
    other = msgspec.structs.replace(TALE, messages=(Message(role="user", content="Tell me a joke."),), continued=said)
    finish = home.run(collect(shared, other))[-1]
    assert isinstance(finish, Finish)
    assert finish.usage.cached_tokens == 0
    assert state.exists()
