"""Tables about engines that a command of its own takes, each into a region of its own of RESULTS.md: they need another
interpreter, limits, or somebody else's client. `scripts/bench engines --all` takes them after its own measures."""

import shlex
import subprocess
import sys
from collections.abc import Sequence

import msgspec

from bench.process import say
from bench.rivals import ROOT

_STOPS_WITHIN = 60.0  # seconds


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """`python` is the interpreter, in the repository; none is the one that runs this. `quick` are the arguments for a
    look. It takes about so many `minutes` on a quiet machine of two cores."""

    title: str
    region: str
    module: str
    minutes: float
    quick: Sequence[str] = ("--quick",)
    python: str | None = None
    made_by: str = ""

    @property
    def shown(self) -> str:
        """The command as one types it."""
        return f"{self.python or 'python'} -m {self.module}"

    def command(self, *, quick: bool, write: bool) -> list[str]:
        python = sys.executable if self.python is None else str(ROOT / self.python)
        return [python, "-m", self.module, *(self.quick if quick else ()), *(("--write",) if write else ())]


TABLES = {
    "weights": Table(title="weights in fewer bits", region="weights", module="bench.weights", minutes=12),
    "sparse_attention": Table(
        title="OpenVINO's sparse attention", region="sparse attention", module="bench.sparse_attention", minutes=8
    ),
    "small_device": Table(
        title="the demo on one core with 1 GiB",
        region="small device",
        module="bench.small_device",
        minutes=1,
        quick=("--questions", "1"),
    ),
    "vllm": Table(
        title="vLLM's path",
        region="vLLM's path",
        module="bench.vllm_path",
        minutes=6,
        quick=("1",),
        python=".venvs/vllm/bin/python",
        made_by="scripts/vllm",
    ),
    "passthrough": Table(
        title="pass-through, by an independent client",
        region="pass-through",
        module="bench.passthrough",
        minutes=15,
        quick=("--streams", "1", "--rounds", "1", "--answers", "4"),
    ),
}


def take(name: str, *, quick: bool, write: bool) -> bool:
    """Run its command, whose lines go to stderr as they come. False if it could not be run or says that it failed, and
    that has been said."""
    table = TABLES[name]
    command = table.command(quick=quick, write=write)
    say(f"{name}: {shlex.join(command)}")
    try:
        process = subprocess.Popen(command, cwd=ROOT, stdout=sys.stderr)
    except FileNotFoundError:
        say(f"{name}: there is no {command[0]}; {table.made_by} makes it")
        return False
    try:
        code = process.wait()
    finally:
        process.terminate()  # it stops whom it has started
        process.wait(_STOPS_WITHIN)
    if code:
        say(f"{name}: failed or missed a goal, exit code {code}")
    return code == 0
