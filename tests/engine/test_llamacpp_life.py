"""How long the embedded engine's process lives: through restarts of its server, and never longer than it should."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from harness import is_alive, run_async, until
from headrace.engine import models
from headrace.engine.llamacpp.engine import LlamaCppEngine
from headrace.engine.llamacpp.parameters import (
    LlamaCppParameters,
    ProcessAddress,
    ProcessState,
    fingerprint,
    locked,
    read_address,
    remove_address,
    write_address,
)
from headrace.engine.llamacpp.reception import Attendance
from headrace.engine.port import Finish, ModelRequest, Text
from headrace.errors import EngineDied
from headrace.testing.engine_contract import LONG, collect, text_of

PROMPT = ModelRequest(prompt="The quick brown fox jumps over the lazy dog. " * 8, max_tokens=2, temperature=0.0)
PARAMETERS = LlamaCppParameters(
    model_path="/m.gguf", model_id="1", alias="m", threads=1, context=256, slots=1, kv="q8_0", batch=8, linger=60.0
)


@pytest.fixture(scope="module")
def weights() -> Path:
    return models.install("smollm2")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Where processes are found; none of them outlives the test."""
    yield tmp_path
    for place in tmp_path.iterdir():
        address = read_address(place)
        if address is not None and is_alive(address.pid):
            os.kill(address.pid, signal.SIGKILL)


def engine_in(home: Path, weights: Path, *, linger: float = 60.0, context: int = 512) -> LlamaCppEngine:
    return LlamaCppEngine(weights, slots=1, context=context, home=home, linger=linger)


def place_in(home: Path) -> Path:
    [place] = home.iterdir()
    return place


SERVER = """
import asyncio, sys
from pathlib import Path
from headrace.engine.llamacpp.engine import LlamaCppEngine
from headrace.engine.port import ModelRequest
from headrace.testing.engine_contract import collect

async def main(weights, home, linger, prompt):
    async with LlamaCppEngine(Path(weights), slots=1, context=512, home=Path(home), linger=float(linger)) as engine:
        await collect(engine, ModelRequest(prompt=prompt, max_tokens=2, temperature=0.0))
        print(engine.pid, flush=True)
        await asyncio.sleep(3600)

asyncio.run(main(*sys.argv[1:]))
"""


@contextlib.asynccontextmanager
async def another_server(
    home: Path, weights: Path, *, linger: float
) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """A process that has asked its embedded engine PROMPT, and that engine's pid."""
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SERVER, str(weights), str(home), str(linger), str(PROMPT.prompt)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert server.stdout is not None
        yield server, int(await server.stdout.readline())
    finally:
        if server.returncode is None:
            server.kill()
        await server.communicate()


@pytest.mark.model
def test_the_next_server_finds_the_process_of_one_that_was_killed_and_its_prompts_read(
    home: Path, weights: Path
) -> None:
    async def scenario() -> None:
        async with another_server(home, weights, linger=60.0) as (server, pid):
            server.kill()
            await server.wait()
        async with engine_in(home, weights) as engine:
            assert engine.pid == pid
            finish = (await collect(engine, PROMPT))[-1]
            assert isinstance(finish, Finish)
            assert finish.usage.cached_tokens >= finish.usage.input_tokens - 1
        await until(lambda: not is_alive(pid))

    run_async(scenario(), deadline=120)


@pytest.mark.model
def test_a_process_whose_servers_are_gone_ends_after_its_time_and_leaves_no_address(home: Path, weights: Path) -> None:
    async def scenario() -> None:
        async with another_server(home, weights, linger=0.5) as (server, pid):
            place = place_in(home)
            assert (place / "process.json").stat().st_mode & 0o777 == 0o600
            server.kill()
            await server.wait()
        await until(lambda: not is_alive(pid))
        await until(lambda: read_address(place) is None)

    run_async(scenario(), deadline=120)


@pytest.mark.model
def test_ctrl_c_ends_the_process_with_its_server(home: Path, weights: Path) -> None:
    async def scenario() -> None:
        async with another_server(home, weights, linger=3600.0) as (server, pid):
            server.send_signal(signal.SIGINT)
            await server.wait()
            await until(lambda: not is_alive(pid))

    run_async(scenario(), deadline=120)


@pytest.mark.model
def test_servers_that_come_at_once_share_one_process_and_the_last_one_ends_it(home: Path, weights: Path) -> None:
    async def scenario() -> None:
        first, second = engine_in(home, weights), engine_in(home, weights)
        await asyncio.gather(first.__aenter__(), second.__aenter__())
        pid = first.pid
        assert pid is not None
        assert second.pid == pid
        async with engine_in(home, weights, context=256) as other:
            assert other.pid != pid, "other parameters are another process"
        await first.__aexit__()
        assert text_of(await collect(second))
        os.kill(pid, signal.SIGKILL)
        assert text_of(await collect(second)), "a request that comes meanwhile waits for the restart"
        assert second.pid != pid
        last = second.pid
        await second.__aexit__()
        assert last is not None
        await until(lambda: not is_alive(last))

    run_async(scenario(), deadline=120)


@pytest.mark.model
def test_a_process_that_dies_under_two_servers_is_replaced_by_one(home: Path, weights: Path) -> None:
    async def scenario() -> None:
        async with engine_in(home, weights) as first, engine_in(home, weights) as second:
            before = first.pid
            assert before is not None
            with pytest.raises(EngineDied):
                await kill_in_the_middle(first, before)
            await asyncio.gather(collect(first), collect(second))
            assert first.pid == second.pid != before

    run_async(scenario(), deadline=120)


async def kill_in_the_middle(engine: LlamaCppEngine, pid: int) -> None:
    async with engine.stream(LONG) as chunks:
        assert isinstance(await anext(chunks), Text)
        os.kill(pid, signal.SIGKILL)
        async for _ in chunks:
            pass


@pytest.mark.model
def test_a_server_that_expects_a_successor_leaves_the_process_running(home: Path, weights: Path) -> None:
    async def scenario() -> None:
        async with engine_in(home, weights) as engine:
            engine.keep()
            pid = engine.pid
        async with engine_in(home, weights) as engine:
            assert engine.pid == pid

    run_async(scenario(), deadline=120)


@pytest.mark.model
def test_an_address_where_a_stranger_listens_is_replaced(home: Path, weights: Path) -> None:
    async def scenario() -> None:
        async with engine_in(home, weights) as engine:
            engine.keep()
        place = place_in(home)
        address = read_address(place)
        assert address is not None
        os.kill(address.pid, signal.SIGKILL)
        await until(lambda: not is_alive(address.pid))
        stranger = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        port = stranger.sockets[0].getsockname()[1]
        write_address(place, msgspec.structs.replace(address, pid=os.getpid(), port=port))
        async with stranger, engine_in(home, weights) as engine:
            assert engine.pid not in (address.pid, os.getpid())
            assert text_of(await collect(engine))

    run_async(scenario(), deadline=120)


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    writer.close()


@pytest.mark.model
def test_who_does_not_know_the_secret_is_not_let_in(home: Path, weights: Path) -> None:
    async def scenario() -> None:
        async with engine_in(home, weights):
            address = read_address(place_in(home))
            assert address is not None
            for word, answers in (("guess", False), (address.secret, True)):
                reader, writer = await asyncio.open_connection("127.0.0.1", address.port)
                writer.write(word.encode() + b"\n")
                line = await reader.readline()
                assert bool(line) == answers
                writer.close()
                await writer.wait_closed()
            assert msgspec.json.decode(line, type=ProcessState).url

    run_async(scenario(), deadline=120)


# Without a model


def test_a_house_is_kept_for_whoever_started_it_then_as_long_as_somebody_is_there_and_a_while_longer() -> None:
    attendance = Attendance(linger=60.0, now=0.0)
    assert attendance.patience(20.0) == 40.0
    attendance.came()
    attendance.came()
    attendance.left(30.0, for_good=True)
    assert attendance.patience(1e9) is None, "another one is still there"
    attendance.left(100.0, for_good=False)
    assert attendance.patience(130.0) == 30.0
    attendance.came()
    attendance.left(200.0, for_good=True)
    assert attendance.patience(200.0) == 0.0


def test_a_house_for_one_only_waits_for_him_once() -> None:
    attendance = Attendance(linger=0.0, now=0.0)
    assert attendance.patience(1.0) == 9.0
    attendance.came()
    attendance.left(2.0, for_good=False)
    assert attendance.patience(2.0) == 0.0


def test_an_address_is_removed_by_its_own_process_only_and_not_while_somebody_looks(tmp_path: Path) -> None:
    address = ProcessAddress(pid=7, port=1, secret="s", parameters=PARAMETERS)
    write_address(tmp_path, address)
    remove_address(tmp_path, 8)
    assert read_address(tmp_path) == address
    with locked(tmp_path) as alone:
        assert alone
        remove_address(tmp_path, 7)
    assert read_address(tmp_path) == address
    remove_address(tmp_path, 7)
    assert read_address(tmp_path) is None


def test_parameters_that_differ_have_different_keys_and_a_changed_file_is_another_model(tmp_path: Path) -> None:
    other = msgspec.structs.replace(PARAMETERS, kv="f16")
    assert PARAMETERS.key != other.key
    assert PARAMETERS.key == msgspec.structs.replace(other, kv="q8_0").key
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF" + bytes(3 << 20))
    before = fingerprint(model)
    model.write_bytes(b"GGUF" + bytes((3 << 20) - 1) + b"x")
    assert fingerprint(model) != before
