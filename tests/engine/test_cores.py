"""The cores that there are, and how a model shares them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.engine.cores import model_environment, model_threads, usable_cores


def test_a_containers_quota_bounds_the_cores(tmp_path: Path) -> None:
    quota = tmp_path / "cpu.max"
    quota.write_text("100000 100000\n")
    assert usable_cores(quota) == 1
    quota.write_text("max 100000\n")
    assert usable_cores(quota) == usable_cores(tmp_path / "missing")


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 2), (3, 2), (8, 7)])
def test_a_model_takes_both_of_two_cores_and_leaves_one_of_more(cores: int, threads: int) -> None:
    assert model_threads(cores) == threads


def test_threads_of_a_model_sleep_soon_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    assert 500 <= int(model_environment()["GOMP_SPINCOUNT"]) <= 5000
    monkeypatch.setenv("GOMP_SPINCOUNT", "77")
    assert model_environment()["GOMP_SPINCOUNT"] == "77"


def test_a_model_comes_after_whoever_started_it() -> None:
    code = "import os; from headrace.engine.cores import give_way; give_way(); print(os.nice(0))"
    said = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True)
    assert int(said.stdout) == min(19, os.nice(0) + 10)
