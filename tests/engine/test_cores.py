"""The cores that there are, and how a model shares them."""

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.engine.cores import model_environment, model_threads, usable_cores


def is_linux(*least: int) -> bool:
    """Whether this is a Linux of that version, or of a later one."""
    release = re.match(r"(\d+)\.(\d+)", platform.release())
    return sys.platform == "linux" and release is not None and (int(release[1]), int(release[2])) >= least


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


@pytest.mark.skipif(not is_linux(6, 12), reason="Linux takes a slice for a thread since 6.12")
def test_the_loop_wakes_before_a_model_and_what_it_starts_does_not() -> None:
    mine, again, others = said_by("print(come_first(), slice_ns(0), come_first(), slice_ns(0), others())")
    assert mine == again < others


def test_where_it_cannot_come_first_nothing_changes() -> None:
    before, after = said_by("platform.machine = lambda: 'riscv64'; print(slice_ns(0), come_first(), slice_ns(0))")
    assert before == after


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root may raise its own priority")
def test_a_server_of_higher_priority_keeps_it_for_what_it_starts() -> None:
    before, after = said_by("os.nice(-1); print(slice_ns(0), come_first(), slice_ns(0))")
    assert before == after


SEEN = """
import ctypes, os, platform, struct, subprocess
from headrace.engine.cores import come_first

def slice_ns(pid, number={"x86_64": 315, "aarch64": 275}[platform.machine()]):
    attributes = ctypes.create_string_buffer(48)
    assert ctypes.CDLL(None).syscall(number, pid, attributes, 48, 0) == 0
    return struct.unpack("IIQiIQQQ", attributes.raw)[5]

def others():
    with subprocess.Popen(("sleep", "60")) as process:
        seen = slice_ns(process.pid)
        process.kill()
    return seen
"""


def said_by(code: str) -> list[int]:
    """The slices that a process of its own prints, in nanoseconds (sched_getattr(2))."""
    ran = subprocess.run((sys.executable, "-c", f"{SEEN}\n{code}"), capture_output=True, text=True, check=True)
    return [int(word) for word in ran.stdout.split() if word.isdigit()]
