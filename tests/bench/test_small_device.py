"""The demo on a small device, as `python -m bench.small_device` limits and judges it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def small_device(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """On a machine that is too busy it is stopped, and stops whom it has started."""
    command = [sys.executable, "-m", "bench.small_device", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            out, err = process.communicate(timeout=300)
        finally:
            process.terminate()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits and /proc are Linux'")
def test_the_demo_answers_rightly_on_one_core_with_1_gib_and_the_peak_of_its_memory_is_told() -> None:
    done = small_device("--questions", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 core" in done.stdout
    assert "1 of 1 answered, 1 of them right" in done.stdout
    peaks = re.findall(r"`headrace.engine.llamacpp.child \d+` \| (\d+)", done.stdout)
    assert max(map(int, peaks)) > 93  # the weights alone: the model's process is counted


@pytest.mark.model
@pytest.mark.skipif(sys.platform != "linux", reason="limits and /proc are Linux'")
def test_the_limit_is_one_and_to_pass_it_is_a_failure() -> None:
    done = small_device("--questions", "1", "--mib", "64")
    assert done.returncode == 1
    assert "does not start within 64 MiB" in done.stderr


def groups(cgroup: str) -> str:
    """As (folder, name of the limit) of `groups_of`."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom bench.memory_limit import groups_of\n"
        "print([(str(at), name) for at, name in groups_of(sys.argv[1], Path('/cg'))])"
    )
    done = subprocess.run([sys.executable, "-c", code, cgroup], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("cgroup", "found"),
    [
        ("4:memory:/a/b\n1:cpu,cpuacct:/\n", [("/cg/memory/a/b", "memory.limit_in_bytes")]),
        ("0::/user.slice/session-1.scope\n", [("/cg/user.slice", "memory.max")]),
        ("0::/\n", [("/cg", "memory.max")]),
        ("1:cpu:/\n", []),
    ],
)
def test_a_cgroup_lies_in_our_own_or_beside_it_as_its_version_wants(cgroup: str, found: list[tuple[str, str]]) -> None:
    assert groups(cgroup) == str(found)
