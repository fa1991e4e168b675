"""The README's code runs as it stands there, and its links lead somewhere."""

import asyncio
import re
import sys
import types
from pathlib import Path

import pytest

from harness import run_async
from headrace.agent.app import as_app
from headrace.engine.port import Text, ToolCallPart
from headrace.engine.scripted import ScriptedEngine
from headrace.server import Server
from serving import config

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
AGENT = next(block for block in BLOCKS if "App(" in block)
CLIENT = next(block for block in BLOCKS if "headrace.client" in block)


def lines(code: str) -> int:
    return len([line for line in code.splitlines() if line.strip()])


def test_the_agent_takes_fifteen_lines_and_the_client_ten() -> None:
    assert lines(AGENT) <= 15
    assert lines(CLIENT) <= 10


def test_the_readmes_client_talks_to_the_readmes_agent(capsys: pytest.CaptureFixture[str]) -> None:
    module = types.ModuleType("my_app")
    sys.modules["my_app"] = module  # the tools' annotations are looked up there
    exec(compile(AGENT, "README.md", "exec"), module.__dict__)
    app = as_app(module.app)
    call = ToolCallPart(index=0, name="order_value", arguments='{"order":"B-17"}')
    app.engine = ScriptedEngine(scripts=[[call], [Text("It cost "), Text("240 euros.")]])

    async def scenario() -> None:

        async with Server(app, config()) as server:
            code = CLIENT.replace("http://127.0.0.1:8321", server.url)
            await asyncio.to_thread(exec, compile(code, "README.md", "exec"), {})

    try:
        run_async(scenario())
    finally:
        del sys.modules["my_app"]
    printed = capsys.readouterr().out
    assert re.fullmatch(r"It cost 240 euros\.\ncompleted, 3 tokens, run [0-9a-f-]{36}\n", printed)


def test_every_link_of_the_readme_and_the_docs_leads_to_a_file() -> None:
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), ROOT / "PROTOCOL.md", ROOT / "ARCHITECTURE.md"]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
