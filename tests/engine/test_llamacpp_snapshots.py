"""Long answers survive the engine's death: they go on from a saved state, and say what they would have said."""

import asyncio
import os
import signal
import threading
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fake_upstream import Answer, FakeUpstream
from harness import run_async, until
from headrace.engine import models
from headrace.engine.llamacpp.answers import Answers
from headrace.engine.llamacpp.engine import LlamaCppEngine
from headrace.engine.llamacpp.process import LlamaCppProcess
from headrace.engine.llamacpp.server import LlamaCppServer
from headrace.engine.llamacpp.slots import Slots
from headrace.engine.llamacpp.snapshot_files import is_whole
from headrace.engine.llamacpp.snapshots import Snapshots, goes_on, in_segments, snapshot_name
from headrace.engine.port import Chunk, Finish, ModelRequest, Text
from headrace.engine.upstream.port import Timeouts
from headrace.errors import EngineDied, EngineProtocol, EngineRejected
from headrace.messages import Message, ToolSpec, Usage
from headrace.testing.engine_contract import collect, text_of

STORY = ModelRequest(
    messages=(Message(role="user", content="Tell a story about a fox. " * 12),), max_tokens=40, temperature=0.0
)
OTHER = ModelRequest(messages=(Message(role="user", content="What is a river? " * 20),), max_tokens=40, temperature=0.0)


def saving(weights: Path, home: Path, *, every: int | None = 16, slots: int = 1) -> LlamaCppEngine:
    return LlamaCppEngine(weights, slots=slots, context=512, home=home, linger=1.0, snapshot_tokens=every)


def snapshots(home: Path) -> list[Path]:
    return list(home.glob("snapshots/*/*.kv"))


async def killed_after(engine: LlamaCppEngine, tokens: int, request: ModelRequest = STORY) -> str:
    """What was said before the process was killed."""
    said: list[str] = []
    with pytest.raises(EngineDied):
        await _kill_after(engine, tokens, request, said)
    return "".join(said)


async def _kill_after(engine: LlamaCppEngine, tokens: int, request: ModelRequest, said: list[str]) -> None:
    async with engine.stream(request) as chunks:
        async for chunk in chunks:
            if isinstance(chunk, Text):
                said.append(chunk.text)
            if len(said) == tokens:
                assert engine.pid is not None
                os.kill(engine.pid, signal.SIGKILL)


async def dies(engine: LlamaCppEngine) -> None:
    """What its process itself remembers is gone."""
    deaths = engine.restarts
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    while engine.restarts == deaths:  # noqa: ASYNC110 - nobody announces it
        await asyncio.sleep(0.01)


@pytest.mark.model
def test_an_answer_in_segments_is_the_same_answer_and_leaves_no_file(tmp_path: Path) -> None:
    async def scenario(weights: Path) -> None:
        async with saving(weights, tmp_path, every=None) as engine:
            uncut = await collect(engine, STORY)
        async with saving(weights, tmp_path) as engine:
            cut = await collect(engine, STORY)
        assert text_of(cut) == text_of(uncut)
        assert isinstance(uncut[-1], Finish)
        assert isinstance(cut[-1], Finish)
        assert cut[-1].reason == uncut[-1].reason == "length"
        assert cut[-1].usage.input_tokens == uncut[-1].usage.input_tokens
        assert cut[-1].usage.output_tokens == uncut[-1].usage.output_tokens == 40
        assert snapshots(tmp_path) == []

    run_async(scenario(models.install("smollm2")), deadline=120)


@pytest.mark.model
def test_after_a_death_the_answer_goes_on_from_the_saved_state(tmp_path: Path) -> None:
    async def scenario(weights: Path) -> None:
        async with saving(weights, tmp_path) as engine:
            uncut = text_of(await collect(engine, STORY))
            said = await killed_after(engine, 20)
            assert len(snapshots(tmp_path)) == 1
            rest = await collect(engine, _rest(said, 20))
            assert said + text_of(rest) == uncut
            finish = rest[-1]
            assert isinstance(finish, Finish)
            assert engine.restored == 1
            assert finish.usage.cached_tokens >= finish.usage.input_tokens - 16, "only the latest segment is read again"
            assert snapshots(tmp_path) == []

    run_async(scenario(models.install("smollm2")), deadline=120)


@pytest.mark.model
def test_at_a_hand_over_the_state_is_saved_where_the_answer_stands(tmp_path: Path) -> None:
    async def scenario(weights: Path) -> None:
        async with saving(weights, tmp_path, every=400) as engine:  # more than the answer has
            uncut = text_of(await collect(engine, STORY))
            await left_after(engine, 20)
            assert snapshots(tmp_path) == [], "who leaves an answer has it no more"
            engine.keep()
            said = await left_after(engine, 20)
            assert len(snapshots(tmp_path)) == 1
            await dies(engine)
            rest = await collect(engine, _rest(said, 20))
            assert said + text_of(rest) == uncut
            finish = rest[-1]
            assert isinstance(finish, Finish)
            assert engine.restored == 1
            assert finish.usage.cached_tokens >= finish.usage.input_tokens - 2

    run_async(scenario(models.install("smollm2")), deadline=120)


async def left_after(engine: LlamaCppEngine, tokens: int) -> str:
    """What was said before whoever reads it left."""
    said: list[str] = []
    async with engine.stream(STORY) as chunks:
        async for chunk in chunks:
            if isinstance(chunk, Text):
                said.append(chunk.text)
            if len(said) == tokens:
                break
    return "".join(said)


@pytest.mark.model
def test_a_saved_state_that_is_damaged_or_of_another_answer_is_not_gone_on_from(tmp_path: Path) -> None:
    """What is said is right in any case. llama.cpp would take a hole for a state: it looks at its own marks only."""

    async def scenario(weights: Path) -> None:
        async with saving(weights, tmp_path) as engine:
            uncut = text_of(await collect(engine, STORY))
            await killed_after(engine, 20, OTHER)
            [foreign] = snapshots(tmp_path)
            said = await killed_after(engine, 20)
            [file] = {*snapshots(tmp_path)} - {foreign}
            whole, of_another = file.read_bytes(), foreign.read_bytes()
            states = (whole[:1000], _with_a_hole(whole), b"", of_another, whole)
            for state, restored in zip(states, (0, 0, 0, 0, 1), strict=True):
                file.write_bytes(state)
                assert said + text_of(await collect(engine, _rest(said, 20))) == uncut
                assert engine.restored == restored
                await dies(engine)

    run_async(scenario(models.install("smollm2")), deadline=240)


def _with_a_hole(state: bytes) -> bytes:
    middle = len(state) // 2
    return state[:middle] + bytes(1024) + state[middle + 1024 :]


@pytest.mark.model
def test_answers_at_once_each_keep_their_slot_and_more_of_them_wait(tmp_path: Path) -> None:
    async def scenario(weights: Path) -> None:
        async with saving(weights, tmp_path, slots=2) as engine:
            alone = text_of(await collect(engine, STORY))
            answers = await asyncio.gather(*(collect(engine, STORY) for _ in range(5)))
            assert [text_of(answer) for answer in answers] == [alone] * 5

    run_async(scenario(models.install("smollm2")), deadline=120)


def _rest(said: str, tokens: int) -> ModelRequest:
    return ModelRequest(
        messages=STORY.messages, max_tokens=40 - tokens, temperature=0.0, continued=said, request_id="again"
    )


# Without a model


def test_only_free_text_is_cut_into_segments() -> None:
    free = ModelRequest(messages=STORY.messages)
    assert in_segments(free)
    assert in_segments(ModelRequest(prompt="Once", extra={"return_progress": True}))
    for shaped in (
        ModelRequest(messages=STORY.messages, stop=("x",)),
        ModelRequest(messages=STORY.messages, grammar="root ::= x"),
        ModelRequest(messages=STORY.messages, json_schema={}),
        ModelRequest(messages=STORY.messages, tools=(ToolSpec(name="t"),)),
        ModelRequest(messages=STORY.messages, seed=0),
        ModelRequest(messages=STORY.messages, logprobs=0),
        ModelRequest(prompt="The JSON: ", extra={"json_schema": {}}),
    ):
        assert not in_segments(shaped)


@pytest.mark.parametrize(
    ("held", "asked", "used", "on"),
    [
        (900, 901, 900, True),
        (900, 950, 900, True),
        (900, 800, 799, True),  # more was computed than had been heard
        (900, 901, 897, True),  # at the border the text is cut into other tokens
        (900, 901, 895, False),
        (900, 901, 1, False),
        (900, 901, 0, False),
        (3, 901, 0, False),
    ],
)
def test_a_state_counts_as_restored_when_what_was_saved_was_used(held: int, asked: int, used: int, on: bool) -> None:
    usage = Usage(input_tokens=asked, cached_tokens=used, output_tokens=1)
    assert goes_on(Finish(reason="stop", usage=usage), held) is on


class FakeServer:
    """Saves and restores states that are of no use to it; each answer is cut into segments of one word."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = self
        self.pid = 1
        self.used = 0
        self.breaks = False
        self.bug: Exception | None = None
        self.state = b"the state"
        self.saved: list[str] = []
        self.may_save = asyncio.Event()
        self.may_save.set()
        self.asked = 0
        self.may_speak = asyncio.Event()
        self.may_speak.set()

    async def living(self, use: Callable[[Any], Awaitable[Any]]) -> Any:
        return await use(self)

    async def save(self, slot: int, file: str) -> None:
        self.saved.append(file)
        await self.may_save.wait()
        if self.bug is not None:
            raise self.bug
        (self.folder / file).write_bytes(b"half" if self.breaks else self.state)
        if self.breaks:
            raise EngineDied("It died while it saved.")

    async def restore(self, slot: int, file: str) -> int:
        assert (self.folder / file).read_bytes()[:-4] == b"the state"
        return 90

    @asynccontextmanager
    async def ask(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[Chunk]]:
        async def chunks() -> AsyncIterator[Chunk]:
            self.asked += 1
            await self.may_speak.wait()
            yield Text("word ")
            usage = Usage(input_tokens=95, cached_tokens=self.used, output_tokens=1)
            yield Finish(reason="length", usage=usage)

        yield chunks()

    async def says(self, states: Snapshots, request: ModelRequest, *, words: int) -> None:
        """So many words, then whoever hears them is gone."""
        answer = states.answer(request, slot=0, ask=self.ask, living=self.living)
        async for chunk in answer:
            words -= isinstance(chunk, Text)
            if words < 0:
                break
        await answer.aclose()


def test_a_model_whose_states_are_never_used_is_not_saved_any_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        server, states = FakeServer(tmp_path), Snapshots(tmp_path, every=1)
        on = ModelRequest(prompt="Once", continued="word ")
        await server.says(states, ModelRequest(prompt="Once"), words=2)
        assert len(server.saved) == 2
        for used, saves in ((0, 1), (90, 1), (0, 1), (1, 1), (0, 1), (0, 0), (0, 0)):
            before, server.used = len(server.saved), used
            await server.says(states, on, words=1)
            assert len(server.saved) - before == saves
        assert states.restored == 1

    run_async(scenario())


def test_a_server_that_is_told_to_end_twice_still_saves_what_it_hands_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        server, states = FakeServer(tmp_path), Snapshots(tmp_path, every=1)
        states.hands_over = True
        server.may_save.clear()
        saving = asyncio.ensure_future(server.says(states, ModelRequest(prompt="Once"), words=0))
        await until(lambda: server.saved)
        for _ in range(2):
            saving.cancel()
            await asyncio.sleep(0)
        server.may_save.set()
        with pytest.raises(asyncio.CancelledError):
            await saving

    run_async(scenario())
    [file] = tmp_path.iterdir()
    assert file.suffix == ".kv", "it is whole"


def test_a_death_while_a_state_is_saved_leaves_the_one_before(tmp_path: Path) -> None:
    async def scenario() -> None:
        server, states = FakeServer(tmp_path), Snapshots(tmp_path, every=1)
        server.used = 90
        once = ModelRequest(prompt="Once", max_tokens=4)
        await server.says(states, once, words=1)
        server.breaks = True
        await server.says(states, once, words=1)
        assert len(server.saved) == 2
        server.breaks = False
        await server.says(states, ModelRequest(prompt="Once", continued="word ", max_tokens=3), words=9)
        assert states.restored == 1

    run_async(scenario())
    assert list(tmp_path.iterdir()) == [], "neither it nor the half"


def test_a_save_that_was_given_up_leaves_the_next_one_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread goes on, and nobody can stop it: it may touch neither the file nor what is just written for it."""
    threads: list[threading.Thread] = []
    go_on, crc32 = threading.Event(), zlib.crc32

    def waits_at_first(data: bytes, before: int = 0) -> int:
        threads.append(threading.current_thread())
        if len(threads) == 1:
            go_on.wait(10)
        return crc32(data, before)

    async def scenario() -> None:
        server, states = FakeServer(tmp_path), Snapshots(tmp_path, every=1)
        given_up = asyncio.ensure_future(server.says(states, ModelRequest(prompt="Once"), words=1))
        await until(lambda: threads)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        assert files(tmp_path) == []
        server.state = b"a state that is longer"
        await server.says(states, ModelRequest(prompt="Once"), words=1)
        assert is_whole(_only_file(tmp_path))
        go_on.set()
        await asyncio.get_running_loop().shutdown_default_executor()  # when the thread has ended

    with monkeypatch.context() as patched:
        patched.setattr(zlib, "crc32", waits_at_first)
        try:
            run_async(scenario())
        finally:
            go_on.set()
    assert len(threads) == 3, "the first save's, the second's, and the look at it"
    assert is_whole(_only_file(tmp_path))
    assert _only_file(tmp_path).read_bytes()[:-4] == b"a state that is longer"


def test_a_save_that_takes_too_long_is_given_up_and_takes_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.engine.llamacpp.snapshots._SAVED_WITHIN", 0.01)
    go_on = threading.Event()
    monkeypatch.setattr(zlib, "crc32", lambda data, before: go_on.wait(10) and 0)

    async def scenario() -> None:
        server, states = FakeServer(tmp_path), Snapshots(tmp_path, every=1)
        try:
            await server.says(states, ModelRequest(prompt="Once"), words=1)
        finally:
            go_on.set()
        assert len(server.saved) == 1
        await asyncio.get_running_loop().shutdown_default_executor()

    run_async(scenario())
    assert list(tmp_path.iterdir()) == []


def test_equal_requests_that_are_saved_at_once_do_not_write_to_one_file(tmp_path: Path) -> None:
    async def scenario() -> None:
        server, states = FakeServer(tmp_path), Snapshots(tmp_path, every=1)
        server.may_save.clear()
        both = [asyncio.ensure_future(server.says(states, ModelRequest(prompt="Once"), words=1)) for _ in range(2)]
        await until(lambda: len(server.saved) == 2)
        assert server.saved[0] != server.saved[1]
        server.may_save.set()
        await asyncio.gather(*both)

    run_async(scenario())
    assert is_whole(_only_file(tmp_path))


def files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def _only_file(folder: Path) -> Path:
    [file] = files(folder)
    assert file.suffix == ".kv"
    return file


@pytest.mark.parametrize("leaves", ["cancelled", "closed"])
def test_whatever_goes_wrong_in_a_hand_over_whoever_leaves_has_left(
    tmp_path: Path, leaves: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        server, states = FakeServer(tmp_path), Snapshots(tmp_path, every=1)
        states.hands_over = True
        server.bug = ValueError("nobody thought of this")
        if leaves == "closed":
            await server.says(states, ModelRequest(prompt="Once"), words=0)
            return
        server.may_speak.clear()
        saying = asyncio.ensure_future(server.says(states, ModelRequest(prompt="Once"), words=1))
        await until(lambda: server.asked)
        saying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await saying

    run_async(scenario())
    assert "nobody thought of this" in caplog.text
    assert list(tmp_path.iterdir()) == []


NONSENSE = [b"", b"null", b'"saved"', b"saved", b'{"n_restored": "many"}', b'[{"n_restored": 1}]', b"\xff"]


@pytest.mark.parametrize("body", [*NONSENSE, b'{"n":' * 100_000])
def test_what_the_process_says_of_its_slots_and_cannot_be_read_is_an_error_of_the_engine(body: bytes) -> None:
    async def scenario() -> None:
        said = Answer([body], headers={"Content-Type": "application/json"})
        async with FakeUpstream(said) as upstream, embedded_server(upstream.url) as server:
            with pytest.raises(EngineProtocol):
                await server.restore(0, "x.kv")
            with pytest.raises(EngineProtocol):
                await server.busy_slots()

    run_async(scenario())


def embedded_server(url: str) -> LlamaCppServer:
    """A client of what listens there, as if that were a process of ours."""
    process = LlamaCppProcess.__new__(LlamaCppProcess)
    process.pid, process.url, process.embedder, process.api_key = 1, url, "", "secret"
    able = LlamaCppEngine(Path("model.gguf")).capabilities
    return LlamaCppServer(process, model="m", name="llamacpp", capabilities=able, timeouts=Timeouts())


def test_a_state_that_the_process_cannot_tell_of_is_not_gone_on_from(tmp_path: Path) -> None:
    async def scenario() -> None:
        server, states = FakeServer(tmp_path), Snapshots(tmp_path, every=1)
        await server.says(states, ModelRequest(prompt="Once"), words=1)
        async with FakeUpstream(Answer([b"null"], headers={"Content-Type": "application/json"})) as upstream:
            async with embedded_server(upstream.url) as real:
                server.restore = real.restore  # type: ignore[method-assign]
                await server.says(states, ModelRequest(prompt="Once", continued="word ", max_tokens=1), words=9)
            assert [asked.path.rpartition("/")[2] for asked in upstream.asked] == ["0?action=restore"]
        assert (server.asked, states.restored) == (3, 0)

    run_async(scenario())


def test_a_file_is_found_by_what_was_asked_not_by_what_was_said() -> None:
    assert snapshot_name(STORY) == snapshot_name(_rest("Once", 1))
    assert snapshot_name(STORY) != snapshot_name(ModelRequest(messages=(Message(role="user", content="Tell"),)))


def test_a_session_gets_its_slot_again_if_it_is_free_and_others_the_one_left_the_longest_time_ago() -> None:
    slots = Slots(3)
    assert [slots.take(name) for name in ("a", "b", None)] == [0, 1, 2]
    for slot in (2, 0, 1):
        slots.give_back(slot)
    assert slots.take("b") == 1, "its prefix is there"
    assert slots.take("b") == 2, "its own is not free"
    assert slots.take(None) == 0, "there is no other"
    slots.give_back(2)
    slots.give_back(0)
    assert slots.take(None) == 2, "nobody's prefix"


class Answering:
    """A server whose answers say their slot, and go on for ever; it does not take those without a question."""

    def __init__(self) -> None:
        self.process = self
        self.pid = 1

    async def living(self, use: Callable[[Any], Awaitable[Any]]) -> Any:
        return await use(self)

    @asynccontextmanager
    async def answer(self, request: ModelRequest) -> AsyncIterator["Said"]:
        try:
            yield Said(request)
        finally:
            for _ in range(10):  # it takes a while to be left: long enough for the next to come, if they could
                await asyncio.sleep(0)


class Said:
    def __init__(self, request: ModelRequest) -> None:
        self._request = request

    async def begin(self) -> None:
        await asyncio.sleep(0)
        if not self._request.prompt:
            raise EngineRejected("It asks nothing.")

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        yield Text(str(self._request.extra["id_slot"]))
        await asyncio.Event().wait()


def embedded(folder: Path, server: Answering, *, slots: int) -> LlamaCppEngine:
    """With answers of another server."""
    engine = LlamaCppEngine(folder / "model.gguf", slots=slots)
    engine._answers = Answers(server.living, slots=slots)
    engine._answers.save_states(folder, every=16)
    return engine


@pytest.mark.parametrize("stop", [(), ("x",)], ids=["in segments", "in one piece"])
def test_whoever_leaves_gives_its_slot_back_before_the_next_in_line_takes_it(
    tmp_path: Path, stop: tuple[str, ...]
) -> None:
    """However it leaves: by itself, cancelled while it hears or waits in line, or refused."""
    said: list[str] = []

    async def hear(engine: LlamaCppEngine, prompt: str, heard: asyncio.Event | None = None) -> None:
        async with engine.stream(ModelRequest(prompt=prompt, stop=stop)) as chunks:
            async for chunk in chunks:
                if isinstance(chunk, Text):
                    said.append(f"{prompt} {chunk.text}")
                    if heard is None:
                        break
                    heard.set()

    async def scenario() -> None:
        engine, heard = embedded(tmp_path, Answering(), slots=1), asyncio.Event()
        first = asyncio.ensure_future(hear(engine, "first", heard))
        await heard.wait()
        asked = [asyncio.ensure_future(hear(engine, prompt)) for prompt in ("left", "", "second", "third")]
        await until(lambda: engine._line.waiting == 4)
        asked[0].cancel()
        await until(lambda: engine._line.waiting == 3)
        assert said == ["first 0"], "the others wait for its slot"
        first.cancel()
        ends = await asyncio.gather(first, *asked, return_exceptions=True)
        assert [type(end) for end in ends] == [
            asyncio.CancelledError,
            asyncio.CancelledError,
            EngineRejected,
            type(None),
            type(None),
        ]
        await hear(engine, "last")

    run_async(scenario())
    assert said == ["first 0", "second 0", "third 0", "last 0"]
