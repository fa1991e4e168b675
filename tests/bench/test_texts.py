"""Prompts of the engines' bench: as long as they are said to be, and new to every cache."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def evaluate(code: str) -> str:
    """Run code in the repository's root, where `bench` can be imported."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_texts_share_no_run_of_words_that_a_cache_could_take_up() -> None:
    code = (
        "from bench.texts import about\n"
        "def runs(number):\n"
        "    words = about(1000, number).lower().replace('.', '').split()\n"
        "    return {tuple(words[at:at + 8]) for at in range(len(words))}\n"
        "first, again, other = about(1000, 1), about(1000, 1), about(1000, 2)\n"
        "print(len(runs(1) & runs(2)), first == again, first.split()[0] == other.split()[0])"
    )
    assert evaluate(code) == "0 True False"


@pytest.mark.model
def test_a_text_has_the_tokens_that_were_asked_for_or_up_to_a_tenth_more() -> None:
    code = (
        "import asyncio\n"
        "from bench.texts import about\n"
        "from bench.weights_llamacpp import tokens_of\n"
        "from headrace.engine import models\n"
        "print(len(asyncio.run(tokens_of(models.install('smollm2'), about(1000, 3)))))"
    )
    assert 1000 <= int(evaluate(code)) <= 1100
