"""What the first command says on a machine where it cannot work, before it downloads anything."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The scripts in a folder of their own, with a place for stand-ins of system commands in front of the PATH."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "bin").mkdir()
    return tmp_path


def stand_in(clone: Path, name: str, script: str) -> Path:
    path = clone / "bin" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def demo(clone: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = f"{clone / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["sh", "scripts/demo", *arguments],
        cwd=clone,
        env={**os.environ, "PATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("machine", ["FreeBSD amd64", "Linux riscv64", "Darwin x86_64", "MINGW64_NT x86_64"])
def test_an_unsupported_platform_is_told_so_first(machine: str, clone: Path) -> None:
    system, processor = machine.split()
    stand_in(clone, "uname", f'[ "$1" = -s ] && echo {system} || echo {processor}')
    done = demo(clone)
    assert done.returncode == 1
    assert "Supported: glibc Linux" in done.stderr
    assert not (clone / ".venv").exists()


def test_musl_is_told_apart_from_glibc(clone: Path) -> None:
    stand_in(clone, "uname", '[ "$1" = -s ] && echo Linux || echo x86_64')
    stand_in(clone, "ldd", "echo 'musl libc (x86_64)' >&2; exit 1")
    assert "musl" in demo(clone).stderr


def on_linux(clone: Path) -> None:
    stand_in(clone, "uname", '[ "$1" = -s ] && echo Linux || echo x86_64')
    stand_in(clone, "ldd", "echo 'ldd (GNU libc) 2.36'")


def test_without_a_python_that_will_do_it_says_how_to_get_one(clone: Path) -> None:
    on_linux(clone)
    done = demo(clone, PYTHON="false")
    assert done.returncode == 1
    assert "3.11 to 3.14" in done.stderr
    assert "apt install" in done.stderr


def test_a_python_without_venv_is_told_the_fix(clone: Path) -> None:
    on_linux(clone)
    python = stand_in(clone, "half-a-python", 'case "$2" in "import venv"*) exit 1 ;; esac')
    done = demo(clone, PYTHON=str(python))
    assert done.returncode == 1
    assert "apt install python3-venv" in done.stderr
    assert "235 MB" in done.stdout, "what will be downloaded is said first"


def test_the_second_time_installs_nothing_and_passes_the_arguments_on(clone: Path) -> None:
    on_linux(clone)
    binaries = clone / ".venv" / "bin"
    binaries.mkdir(parents=True)
    for name, script in (("python", "exit 0"), ("headrace", 'echo "$@" >>"$0.log"')):
        (binaries / name).write_text(f"#!/bin/sh\n{script}\n")
        (binaries / name).chmod(0o755)
    (clone / ".venv" / "headrace-local").write_text((clone / "pyproject.toml").read_text() + "local\n")
    done = demo(clone, "--port", "9")
    assert (done.returncode, done.stdout) == (0, "")
    assert (binaries / "headrace.log").read_text().splitlines() == ["models install smollm2", "serve --port 9"]


def with_services(clone: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Run a line of shell as scripts/test would, with an apt-get that tells what it was asked and what it met."""
    stand_in(clone, "apt-get", 'echo "$@" >>"$0.log"; [ ! -x "$POLICY_RC_D" ] || "$POLICY_RC_D"; echo $? >>"$0.log"')
    stand_in(clone, "id", "echo 0")
    stand_in(clone, "systemctl", 'echo "$@" >>"$0.log"')
    return subprocess.run(
        ["sh", "-euc", f". scripts/venv.sh; . scripts/services.sh; {command}"],
        cwd=clone,
        env={"PATH": f"{clone / 'bin'}:/usr/bin:/bin", "POLICY_RC_D": str(clone / "policy-rc.d")},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_services_are_installed_and_start_neither_now_nor_at_the_next_boot(clone: Path) -> None:
    done = with_services(clone, "install_services nginx redis-server")
    assert (done.returncode, done.stderr) == (0, "")
    update, _, install, started = (clone / "bin" / "apt-get.log").read_text().splitlines()
    assert update.startswith("update")
    assert install.endswith("nginx redis-server")
    assert started == "101", "what a policy says that forbids it"
    assert not (clone / "policy-rc.d").exists()
    assert (clone / "bin" / "systemctl.log").read_text().splitlines() == [
        "disable --quiet nginx",
        "disable --quiet redis-server",
    ]


def test_a_policy_that_is_there_already_stays(clone: Path) -> None:
    stand_in(clone, "../policy-rc.d", "exit 104")
    assert with_services(clone, "install_services nginx").returncode == 0
    assert "exit 104" in (clone / "policy-rc.d").read_text()


def test_without_services_it_says_what_is_skipped_and_how_to_have_it(clone: Path) -> None:
    done = with_services(clone, "say_what_is_skipped redis-server nginx")
    assert "several instances are skipped" in done.stdout
    assert "apt-get install redis-server nginx" in done.stdout
    assert not (clone / "bin" / "apt-get.log").exists()
