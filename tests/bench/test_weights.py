"""What the table of weights says, and that each library foretells the text."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from tiny_model import learning_text, make_tiny_model

ROOT = Path(__file__).resolve().parents[2]
TORCH = ROOT / ".venvs" / "transformers" / "bin" / "python"

ROWS = """
from bench.perplexity import Foretold
from bench.weights import table
from bench.weights_row import Row

def row(answer, *likeliest):
    foretold = Foretold(logprobs=[-1.0] * 4, likeliest=[*likeliest])
    return Row(weights_mib=1, memory_mib=2, rate=3, answers=[answer], foretold=foretold)

full, other = row("one two", 1, 2, 3, 4), row("one, two", 1, 2, 3, 9)
"""


def evaluate(code: str) -> str:
    """Run code in the repository's root, where `bench` can be imported."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_model_that_knows_nothing_is_as_perplexed_as_there_are_tokens() -> None:
    code = "from bench.perplexity import perplexity; from math import log; print(perplexity([log(1 / 512)] * 40))"
    assert float(evaluate(code)) == pytest.approx(512)


def test_the_text_is_cut_into_whole_windows_and_one_that_is_too_short_is_refused() -> None:
    code = (
        "from bench.perplexity import windows\n"
        "print(windows(range(11), size=5, count=9), windows(range(11), size=2, count=2))\n"
        "try: windows(range(3), size=5, count=1)\n"
        "except ValueError as exc: print(exc)"
    )
    cut, refused = evaluate(code).splitlines()
    assert cut == "[[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]] [[0, 1], [2, 3]]"
    assert "3 tokens" in refused
    assert "needs 5" in refused


def test_agreement_is_with_full_precision_token_by_token_and_up_to_the_first_difference() -> None:
    lines = evaluate(ROWS + "print(table({'full': full, 'nf4': other}))").splitlines()
    assert lines[2].endswith("| 100.0% | 100% |")
    assert lines[3].endswith("| 75.0% | 38% |")
    assert f"| {math.e:.2f} |" in lines[3]


def test_without_full_precision_no_agreement_is_claimed() -> None:
    assert evaluate(ROWS + "print(table({'nf4': other}))").splitlines()[2].endswith("| - | - |")


def test_rows_whose_library_is_not_there_or_that_do_not_exist_are_refused_before_anything_is_measured() -> None:
    code = (
        "import sys; from pathlib import Path; from bench import weights\n"
        "weights.PYTHON = Path('/nowhere/python')\n"
        "sys.argv[1:] = ['--only', {!r}]\n"
        "weights.main()"
    )
    for only, said in (("nf4", "scripts/transformers"), ("Q9_9", "there are full, int8, nf4")):
        done = subprocess.run(
            [sys.executable, "-c", code.format(only)], cwd=ROOT, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 2
        assert said in done.stderr


@pytest.mark.model
def test_llamacpp_tells_what_it_thought_of_the_text_before_the_token_was_forced() -> None:
    command = [sys.executable, "-m", "bench.weights", "--quick", "--only", "Q4_1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    [row] = [line for line in done.stdout.splitlines() if line.startswith("| llama.cpp")]
    # 1 if it told what the bias made of it, and more than the vocabulary's size if places were mixed up.
    assert 60 < float(row.split("|")[5]) < 140


@pytest.mark.slow
@pytest.mark.skipif(not TORCH.exists(), reason="scripts/transformers makes the environment with PyTorch")
def test_four_bits_make_a_smaller_file_and_still_foretell_every_token(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "tiny", text=learning_text())
    task = {"windows": [list(range(20, 60))], "openings": ["one"], "tokens": 4, "threads": 1}
    done = subprocess.run(
        [str(TORCH), "-m", "bench.weights_torch"],
        cwd=ROOT,
        input=json.dumps({"type": "Speak", "folder": str(folder), "weights": "nf4", "task": task}),
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert len(row["foretold"]["logprobs"]) == len(row["foretold"]["likeliest"]) == 39
    assert row["rate"] > 0
    assert row["weights_mib"] < 0.5 * (folder / "model.safetensors").stat().st_size / 2**20
