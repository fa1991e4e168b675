"""`headrace serve` on weights alone: a base model in 4 bits, as the documentation configures it."""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from harness import run_async

ROOT = Path(__file__).parents[2]


@pytest.fixture
def place(tiny: Path, tmp_path: Path) -> Path:
    """A working directory with the documentation's headrace.toml, and a base model where that looks for one."""
    page = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
    section = page.split("## Transformers for weights alone")[1].split("\n## ")[0]
    (tmp_path / "headrace.toml").write_text(section.split("```toml")[1].split("```")[0])
    model = tmp_path / "models" / "Qwen3-0.6B"
    shutil.copytree(tiny, model)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    return tmp_path


@asynccontextmanager
async def served(place: Path) -> AsyncIterator[str]:
    """`headrace serve`, and its URL."""
    settings = {"LOG__PATH": str(place / "log"), "SERVER__PORT": "0", "CACHE": str(place / "cache")}
    settings["ENGINE__CONTEXT_TOKENS"] = "300"  # a model of random numbers hardly ever ends by itself
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.cli", "serve", "model_app:app"),
        cwd=place,
        env=os.environ
        | {f"HEADRACE_{name}": value for name, value in settings.items()}
        | {"PYTHONPATH": str(ROOT / "tests" / "engine")},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        yield (await process.stdout.readline()).decode().split()[-1]
    finally:
        process.kill()
        await process.communicate()


def test_a_base_model_in_4_bits_answers_a_run_as_the_documentation_says(place: Path) -> None:
    async def scenario() -> None:
        body = {"input": "Say a few words."}
        async with (
            served(place) as url,
            aiohttp.ClientSession() as http,
            http.post(f"{url}/v1/runs", json=body, headers={"Prefer": "wait=60"}) as response,
        ):
            run = await response.json()
            assert response.status == 200, run
        [turn] = run["state"]["turns"]
        assert turn["text"]
        assert turn["usage"]["input_tokens"] > 100, "the question stands in a dialogue"

    run_async(scenario(), deadline=240)
