"""Sparse attention beside dense attention: what the table says, and one short look at the library."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("openvino_genai")

ROOT = Path(__file__).resolve().parents[2]

OUTCOMES = """
from bench.sparse_attention import Answer, Outcome, Setting, table

def outcome(perplexity, *answers):
    told = [Answer(first=first, tokens=tokens, logprobs=[]) for first, tokens in answers]
    return Outcome(answers=told, perplexity=perplexity)

print(table({
    Setting(step=64): outcome(20, (2.0, [1, 2, 3, 4]), (4.0, [5, 6, 7, 8])),
    Setting(step=64, mode="TRISHAPE"): outcome(21, (1.0, [1, 2, 9, 9]), (2.0, [9, 6, 7, 8])),
    Setting(step=800): outcome(30, (8.0, [9, 9, 9, 9]), (8.0, [9, 9, 9, 9])),
}))
"""


def run(*arguments: str) -> list[list[str]]:
    """The cells of the table's rows."""
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_each_setting_is_told_beside_dense_attention_in_the_same_steps() -> None:
    dense, sparse, other = run("-c", OUTCOMES)
    assert dense[3:] == ["1.00", "20.00", "2 of 2", "100%"]
    assert sparse[3:] == ["0.50", "21.00", "1 of 2", "25%"]
    assert other[3:] == ["1.00", "30.00", "2 of 2", "100%"]


@pytest.mark.model
@pytest.mark.slow
def test_attending_to_less_changes_what_a_long_prompt_is_thought_of() -> None:
    dense, sparse = run("-m", "bench.sparse_attention", "--quick")
    assert dense[0] == "dense"
    assert dense[6] == "100%"
    assert 60 < float(dense[4]) < 120
    assert 60 < float(sparse[4]) < 120
    assert sparse[4] != dense[4]
