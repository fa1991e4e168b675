"""The cores that there are, and how a model shares them."""

import ctypes
import os
import platform
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.engine.cores import come_first, model_environment, model_threads, usable_cores


def newer_than(*version: int) -> bool:
    """Whether this is a Linux of that version, or a later one."""
    return sys.platform == "linux" and tuple(map(int, platform.release().split(".")[:2])) >= version


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


@pytest.mark.skipif(not newer_than(6, 12), reason="Linux takes a slice for a thread since 6.12")
def test_the_loop_wakes_before_a_model_and_what_it_starts_does_not() -> None:
    assert come_first()
    mine = slice_ns(0)
    assert come_first(), "a second time"
    assert slice_ns(0) == mine
    with subprocess.Popen(("sleep", "60")) as model:
        others = slice_ns(model.pid)
        model.kill()
    assert mine < others


def test_where_the_system_cannot_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert not come_first()


def slice_ns(pid: int) -> int:
    """sched_getattr(2): of struct sched_attr the runtime."""
    attributes = ctypes.create_string_buffer(56)
    number = {"x86_64": 315, "aarch64": 275}[platform.machine()]
    assert ctypes.CDLL(None).syscall(number, pid, attributes, len(attributes), 0) == 0
    return int(struct.unpack("IIQiIQ", attributes.raw[:32])[-1])
