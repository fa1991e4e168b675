"""docs/durability.md: every test that it calls on is there, its code does what it says, and what else it claims."""

import asyncio
import os
import re
import signal
import sqlite3
import sys
import types
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from harness import run_async
from headrace.config import Config, LogConfig, ServerConfig
from headrace.tools.function import FunctionTool
from redis_server import RedisServer
from serving import FunctionAgent, count, parse, read_until, running

TESTS = Path(__file__).parent
DOCS = TESTS.parent / "docs"
PAGE = (DOCS / "durability.md").read_text(encoding="utf-8")
CHINESE = (DOCS / "zh" / "durability.md").read_text(encoding="utf-8")
(CODE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)

Table = list[list[str]]


def tables(text: str) -> list[Table]:
    """Each table's rows of cells, without the line under its head."""
    blocks = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    return [[[cell.strip() for cell in re.split(r" ?\| ?", row)[1:-1]] for row in rows(block)] for block in blocks]


def rows(block: str) -> list[str]:
    head, _, *rest = block.splitlines()
    return [head, *rest]


# What proves it


def test_every_test_that_the_page_names_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", PAGE)
    assert len(named) > 50
    for path, name in named:
        assert f"def {name}(" in (TESTS.parent / path).read_text(encoding="utf-8"), f"{path}::{name}"
    assert len(re.findall(r"\btest_\w+`", PAGE)) == len(named)


def test_every_row_has_its_proof() -> None:
    found = tables(PAGE)
    proofs = [table for table in found if table[0][0] == "row"]
    assert len(proofs) == 3
    for table in proofs:
        claims = found[found.index(table) - 1]
        assert [row[0] for row in table[1:]] == [row[0] for row in claims[1:]]
    for table in found:
        if table[0][-1] == "proof":
            assert all(re.search(r"::test_|what Redis documents", row[-1]) for row in table[1:])


def test_every_section_that_claims_something_has_proof() -> None:
    for section in PAGE.split("\n## ")[1:]:
        if not section.startswith("How to read the tables"):
            assert "| proof |" in section, section.partition("\n")[0]


def test_the_chinese_page_has_the_same_rows() -> None:
    claims = [table for table in tables(PAGE) if table[0][-1] != "proof"]
    assert [len(table) for table in claims] == [len(table) for table in tables(CHINESE)][: len(claims)]
    assert CODE in CHINESE


# The page's tool


class Context:
    """What `charge` needs of a ToolContext."""

    def __init__(self, call_id: str) -> None:
        self.call_id = call_id


@pytest.fixture
def charge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FunctionTool:
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("shop")
    monkeypatch.setitem(sys.modules, "shop", module)  # the tool's annotations are looked up there
    exec(compile(CODE, "durability.md", "exec"), module.__dict__)
    made: FunctionTool = module.charge
    return made


def debts(folder: Path) -> list[tuple[str, int]]:
    with closing(sqlite3.connect(folder / "shop.db")) as database:
        return database.execute("SELECT customer, cents FROM debts").fetchall()


def test_the_pages_tool_called_twice_with_one_call_id_charges_once(charge: FunctionTool, tmp_path: Path) -> None:
    assert charge.spec.effect == "idempotent"
    answers = {charge("Ada", 240, Context("call-1")) for _ in range(2)}
    assert answers == {"Ada was charged 240 cents."}
    assert debts(tmp_path) == [("Ada", 240)]
    charge("Ada", 60, Context("call-2"))
    assert debts(tmp_path) == [("Ada", 300)]


def test_the_pages_tool_called_at_the_same_time_with_one_call_id_charges_once(
    charge: FunctionTool, tmp_path: Path
) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: charge("Ada", 240, Context("call-1")), range(40)))
    assert debts(tmp_path) == [("Ada", 240)]


@asynccontextmanager
async def served(folder: Path, app: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, aiohttp.ClientSession]]:
    """A server of its own, with its files in `folder`, and a session that talks to it."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS / "server")]),
        "HEADRACE_LOG__PATH": str(folder / "log"),
        "HEADRACE_SERVER__PORT": "0",
        "LEDGER": str(folder / "ledger"),
    }
    command = [sys.executable, "-m", "headrace.cli", "serve", app]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=environment, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().split()[-1]
        async with aiohttp.ClientSession(url) as http:
            yield process, http
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def begin(http: aiohttp.ClientSession, **run: str) -> str:
    async with http.post("/v1/runs", data=msgspec.json.encode({"input": "x", **run})) as answer:
        run_id: str = (await answer.json())["run_id"]
        return run_id


async def events(http: aiohttp.ClientSession, run_id: str) -> list[dict[str, Any]]:
    async with http.get(f"/v1/runs/{run_id}/events?chunk=token") as answer:
        return parse(await answer.read())


def test_a_server_that_dies_in_the_doubtful_window_charges_once(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(CODE)

    async def scenario() -> None:
        async with served(tmp_path, "dying_shop:app") as (process, http):
            run_id = await begin(http)
            assert await process.wait() == -signal.SIGKILL
        assert debts(tmp_path) == [("Ada", 240)]
        async with served(tmp_path, "dying_shop:app") as (_, http):
            records = await events(http, run_id)
        assert [r["result"] for r in records if r["event"] == "tool.result"] == ["Ada was charged 240 cents."]
        assert [r["event"] for r in records].count("run.recovered") == 1
        assert (records[-1]["event"], records[-1]["output"]) == ("run.finished", "Done.")

    run_async(scenario(), deadline=60)
    first, second = (tmp_path / "calls").read_text().split()
    assert first == second
    assert debts(tmp_path) == [("Ada", 240)]


# What no other test says


def test_with_memory_a_run_is_unknown_after_a_restart() -> None:
    async def scenario() -> None:
        async with running(FunctionAgent(count)) as caller:
            run_id = (await caller.finished("3"))["run_id"]
        async with running(FunctionAgent(count)) as caller:
            status, problem = await caller.get(f"/v1/runs/{run_id}")
            assert (status, problem["code"]) == (404, "unknown_run")

    run_async(scenario())


def test_a_server_that_was_frozen_goes_on_where_it_was(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path, "killed_app:app") as (process, http):
            run_id = await begin(http, agent="talker")
            async with http.get(f"/v1/runs/{run_id}/events?chunk=token") as answer:
                seen = await read_until(answer, b"word-30 ")
                process.send_signal(signal.SIGSTOP)
                with suppress(TimeoutError):
                    while True:  # what had left it before it froze
                        seen += await asyncio.wait_for(answer.content.readany(), 0.3)
                process.send_signal(signal.SIGCONT)
                assert b"run.finished" not in seen
                records = parse(seen + await answer.read())
            assert [record["id"] for record in records] == list(range(1, len(records) + 1))
            assert records == await events(http, run_id)
            said = "".join(record["text"] for record in records if record["event"] == "text.delta")
            assert said == records[-1]["output"]

    run_async(scenario(), deadline=60)


def test_an_emptied_redis_has_forgotten_ended_runs_and_keys(own_redis: RedisServer) -> None:
    async def scenario() -> None:
        settings = Config(server=ServerConfig(port=0), log=LogConfig(url=own_redis.url))
        once = {"idempotency_key": "k", "prefer": "wait=20"}
        async with running(FunctionAgent(count), settings=settings) as caller:
            _, first = await caller.post("/v1/runs", {"input": "1"}, **once)
            _, same = await caller.post("/v1/runs", {"input": "1"}, **once)
            assert same["run_id"] == first["run_id"]
        await asyncio.to_thread(own_redis.restart, empty=True)
        async with running(FunctionAgent(count), settings=settings) as caller:
            status, problem = await caller.get(f"/v1/runs/{first['run_id']}")
            assert (status, problem["code"]) == (404, "unknown_run")
            _, another = await caller.post("/v1/runs", {"input": "1"}, **once)
            assert another["run_id"] != first["run_id"]

    run_async(scenario(), deadline=60)
