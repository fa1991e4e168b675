"""The recipes of docs/vllm.md, read by the vLLM that is installed: it knows every flag and takes every value."""

import dataclasses
import json
import re
import shlex
import warnings
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pytest

with warnings.catch_warnings():  # of what it imports, and no business of ours
    warnings.simplefilter("ignore")
    from vllm.config import SpeculativeConfig
    from vllm.config.quantization import ONLINE_QUANT_SHORTHAND_NAMES
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

DOCS = Path(__file__).parents[2] / "docs"
PAGES = (DOCS / "vllm.md", DOCS / "zh" / "vllm.md")
OF_A_PLUGIN = {"bitsandbytes"}


def recipes() -> list[str]:
    """What the pages give to `vllm serve`: its commands, and the flags that stand by themselves in a table's column."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        found += re.findall(r"vllm serve \S+ ([^`\n]*)", text)
        columns = [row.split("|")[2] for row in text.splitlines() if row.count("|") > 6]
        found += [span for column in columns for span in re.findall(r"`(--[^`]+)`", column)]
        found += re.findall(r"^[^|\n]*?`(--[^`]+)`", text, re.MULTILINE)
    return sorted({recipe.strip() for recipe in found if not recipe.startswith("--engine-")})


@pytest.fixture(scope="module")
def parser() -> ArgumentParser:
    made: ArgumentParser = make_arg_parser(FlexibleArgumentParser())
    return made


def test_the_pages_have_recipes() -> None:
    assert len(recipes()) > 12
    assert any("--kv-cache-dtype fp8" in recipe for recipe in recipes())


@pytest.mark.parametrize("recipe", recipes())
def test_vllm_takes_a_recipe_as_it_is_written(parser: ArgumentParser, recipe: str) -> None:
    words = shlex.split(recipe)
    if len(words) == 1:  # only named, maybe without the value that it takes
        assert words[0] not in parser.parse_known_args(["--model", "m", *words, "value"])[1]
        return
    given = parser.parse_args(["--model", "m", *words])
    if given.quantization is not None:  # what is found in a checkpoint needs no flag
        assert given.quantization in {*ONLINE_QUANT_SHORTHAND_NAMES, *OF_A_PLUGIN}
    if given.speculative_config is not None:
        assert set(_object(given.speculative_config)) <= {field.name for field in dataclasses.fields(SpeculativeConfig)}


def _object(given: Any) -> dict[str, Any]:
    return dict(json.loads(given) if isinstance(given, str) else given)
