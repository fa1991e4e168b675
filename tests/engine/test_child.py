"""A process of our own, and how one life follows another."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import uvloop

from harness import is_alive, run_async, until
from headrace.engine.child import ChildProcess, Lives
from headrace.errors import EngineUnavailable

SCRIPT = Path(__file__).with_name("talking_child.py")


class Word(msgspec.Struct):
    word: str


@pytest.fixture
def talking_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that the child's interpreter finds."""
    (tmp_path / "talking_child.py").write_bytes(SCRIPT.read_bytes())
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "talking_child"


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_it_is_spoken_to_in_lines_and_ends_when_it_is_let_go(
    talking_child: str, tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def scenario() -> None:
        child = await ChildProcess.start(talking_child, log=tmp_path / "log")
        child.send(Word("día 帮"))
        assert msgspec.json.decode(await child.line(), type=Word) == Word("día 帮")
        await child.stop()
        assert await child.wait() == 0
        assert await child.line() == b""

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(scenario(), 30))


def test_one_that_does_not_listen_is_killed(talking_child: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        child = await ChildProcess.start(talking_child, log=tmp_path / "log")
        child.send(Word("deaf"))
        await child.line()
        await child.stop()
        assert not is_alive(child.pid)

    run_async(scenario())


def test_speaking_to_one_that_has_ended_is_no_error(talking_child: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        child = await ChildProcess.start(talking_child, log=tmp_path / "log")
        child.send(Word("die"))
        assert await child.wait() == 7
        child.send(Word("anybody there?"))
        await child.stop()

    run_async(scenario())


class Life:
    """Plays lives: each is born as its number when `begin` is set, and ends when `end` is."""

    def __init__(self, *, fails: Callable[[int], bool] = lambda number: False) -> None:
        self.number = 0
        self.end = asyncio.Event()
        self.begin = asyncio.Event()
        self.begin.set()
        self._fails = fails

    async def live(self, born: Callable[[int], None]) -> int:
        self.number += 1
        await self.begin.wait()
        if self._fails(self.number):
            raise EngineUnavailable(f"Life {self.number} did not begin.")
        born(self.number)
        self.end.clear()
        await self.end.wait()
        return -9


def test_after_a_life_comes_the_next_and_who_asks_meanwhile_waits_for_it() -> None:
    async def scenario() -> None:
        life = Life()
        async with Lives(life.live, name="test") as lives:
            assert await lives.now(wait=1) == 1
            life.begin.clear()
            life.end.set()
            await until(lambda: life.number == 2)
            waiting = asyncio.ensure_future(lives.now(wait=20))
            with pytest.raises(EngineUnavailable, match="being restarted"):
                await lives.now(wait=0)
            life.begin.set()
            assert await waiting == 2
            assert lives.restarts == 1

    run_async(scenario())


def test_a_first_life_that_does_not_begin_says_why() -> None:
    async def scenario() -> None:
        life = Life(fails=lambda number: True)
        with pytest.raises(EngineUnavailable, match="Life 1 did not begin"):
            async with Lives(life.live, name="test"):
                pass
        assert life.number == 1

    run_async(scenario())


def test_a_later_life_that_does_not_begin_is_tried_again() -> None:
    async def scenario() -> None:
        life = Life(fails=lambda number: number == 2)
        async with Lives(life.live, name="test") as lives:
            life.end.set()
            await until(lambda: life.number == 3)
            assert await lives.now(wait=20) == 3

    run_async(scenario())


def test_nobody_is_served_before_the_beginning_and_after_the_end() -> None:
    async def scenario() -> None:
        life = Life()
        lives = Lives(life.live, name="test")
        for _ in range(2):
            with pytest.raises(EngineUnavailable, match="not open"):
                await lives.now(wait=0)
            async with lives:
                await lives.now(wait=1)

    run_async(scenario())
