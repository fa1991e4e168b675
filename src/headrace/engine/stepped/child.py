"""A model in a process of its own: what the `child` module of each engine runs.

The library computes a step while it holds the interpreter, so this process does nothing else: between two steps it
reads what was asked meanwhile and writes what came of the last one (`lines.py`). It ends when stdin closes.
What the library prints goes to stderr, which the parent points at a log.
"""

import ctypes
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from typing import IO, TypeVar

import msgspec

from headrace.engine.cores import give_way
from headrace.engine.stepped.batch import Batch, Model
from headrace.engine.stepped.lines import Failed, Generate, Order, Parameters, Ready, Said, line, orders

_PR_SET_PDEATHSIG = 1
_STDIN = 0
_READ = 1 << 16

P = TypeVar("P", bound=Parameters)


def serve(kind: type[P], load: Callable[[P], Model]) -> None:
    """Answer until stdin closes, and leave the process. `load` takes seconds, and imports the library only then."""
    with open(_STDIN, "rb", buffering=0, closefd=False) as stdin:
        parameters = msgspec.json.decode(stdin.readline(), type=kind)
    _end_with(parameters.parent)
    give_way()
    report = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # the library must not write between our lines
    try:
        batch = _warm(load(parameters), parameters)
        _write(report, [Ready()])
        _work(batch, report)
    except Exception as exc:
        _write(report, [Failed(_in_short(exc))])
        os._exit(1)
    os._exit(0)  # without waiting for generations that nobody reads


def _end_with(parent: int) -> None:
    """The end of stdin says that the parent is gone; on Linux the kernel says it even while a step is computed."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)  # it went before the kernel was asked


def _warm(model: Model, parameters: Parameters) -> Batch:
    """Ready to answer: one token has been generated, which compiles what else the first user would wait for."""
    batch = Batch(model, slots=parameters.slots, context=parameters.context)
    batch.obey(Generate(id=0, prompt="Hi", max_tokens=1))
    batch.admit()
    while batch.busy:
        batch.step()
    return batch


def _work(batch: Batch, report: IO[bytes]) -> None:
    """Until stdin closes."""
    lines = _Lines()
    while True:
        said: list[Said] = []
        while select.select([_STDIN], [], [], 0 if batch.busy or said else None)[0]:
            data = os.read(_STDIN, _READ)
            if not data:
                return
            said += [message for order in lines.feed(data) for message in batch.obey(order)]
        _write(report, said + batch.admit())
        if batch.busy:
            _write(report, batch.step())


class _Lines:
    """Bytes in, orders out."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []

    def feed(self, data: bytes) -> Iterator[Order]:
        first, *more = data.split(b"\n")
        self._rest.append(first)
        for part in more:
            yield orders.decode(b"".join(self._rest))
            self._rest = [part]


def _write(report: IO[bytes], said: list[Said]) -> None:
    """All at once, and all of it: a pipe may take a part."""
    data = memoryview(b"".join(line(message) for message in said))
    while data:
        data = data[report.write(data) :]


def _in_short(exc: Exception) -> str:
    """The library's messages begin with where in its source they come from."""
    *_, last = str(exc).strip().splitlines() or [type(exc).__name__]
    return last.strip()
