"""Processes for tools that compute: they use other cores, and one can really be stopped.

A worker is a spawned process (it inherits neither the log's lock nor the socket) that imports the function by name and
answers over a pipe. A call whose caller is cancelled kills its worker: that is the only way to stop Python code that
does not want to. Workers end when our end of the pipe closes, also when this process is killed.
"""

import asyncio
import functools
import importlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any
from weakref import WeakKeyDictionary

from headrace.errors import ConfigError, ToolFailed
from headrace.tools.threads import run_in_thread

MAX_WORKERS = os.cpu_count() or 1

_idle: list["_Worker"] = []
_lock = threading.Lock()
_places: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


def require_importable(function: Callable[..., Any]) -> None:
    """Raises ConfigError for a function that another process could not find by its name."""
    if "<" in function.__qualname__ or not hasattr(sys.modules.get(function.__module__), "__name__"):
        raise ConfigError(
            f"The tool {function.__qualname__} cannot run in a process of its own: it is not at module level.",
            hint="Move it to the top level of a module, or leave out cpu=True to run it in a thread.",
        )


async def run_in_process(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call a module-level function in a worker. Both `arguments` and the result travel by pickle.

    Raises:
        ToolFailed: the worker died; whatever the function raised comes as a ToolFailed with its text.
    """
    places = _places.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(MAX_WORKERS))
    async with places:
        worker = _take()
        try:
            job = (function.__module__, function.__qualname__, dict(arguments))
            answer = await run_in_thread(functools.partial(worker.exchange, job), name="headrace-cpu-tool")
        except BaseException:
            worker.kill()
            raise
        _give_back(worker)
    succeeded, value = answer
    if succeeded:
        return value
    raise ToolFailed(value)


def close_workers() -> None:
    """End the idle workers. Those at work end with their calls."""
    with _lock:
        leaving = _idle[:]
        _idle.clear()
    for worker in leaving:
        worker.close()


def _take() -> "_Worker":
    with _lock:
        while _idle:
            worker = _idle.pop()
            if worker.alive:
                return worker
    return _Worker()


def _give_back(worker: "_Worker") -> None:
    with _lock:
        _idle.append(worker)


class _Worker:
    """Its process is started by the first `exchange`, in a thread: that takes longer than a loop may be blocked."""

    def __init__(self) -> None:
        self._process: SpawnProcess | None = None
        self._pipe: Connection | None = None
        self._killed = False

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.is_alive()

    def exchange(self, job: tuple[str, str, dict[str, Any]]) -> tuple[bool, Any]:
        """Blocks. Raises ToolFailed when the process dies."""
        pipe = self._pipe or self._start()
        try:
            pipe.send(job)
            answer: tuple[bool, Any] = pipe.recv()
        except (EOFError, OSError) as exc:
            raise ToolFailed(f"The tool's process died (exit code {self.close()}).") from exc
        return answer

    def kill(self) -> None:
        """Never blocks: the thread in `exchange` sees the pipe end and closes it."""
        self._killed = True
        if self._process is not None:
            self._process.kill()

    def close(self) -> int | None:
        """End the process, wait for it, and say its exit code."""
        if self._process is None or self._pipe is None:
            return None
        self._pipe.close()
        self._process.join(1)
        self._process.kill()
        self._process.join(5)
        return self._process.exitcode

    def _start(self) -> Connection:
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=_serve, args=(theirs,), name="headrace-cpu-tool", daemon=True)
        process.start()
        theirs.close()
        self._pipe, self._process = ours, process
        if self._killed:
            process.kill()
        return ours


def _serve(pipe: Connection) -> None:
    """The worker's main loop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    while True:
        try:
            module, name, arguments = pipe.recv()
        except (EOFError, OSError):
            return
        answer = _call(module, name, arguments)
        try:
            pipe.send(answer)
        except (pickle.PicklingError, TypeError, AttributeError) as exc:
            pipe.send((False, f"The result cannot leave the tool's process: {exc}"))


def _call(module: str, name: str, arguments: dict[str, Any]) -> tuple[bool, Any]:
    try:
        found: Any = functools.reduce(getattr, name.split("."), importlib.import_module(module))
        function = getattr(found, "function", found)  # the decorator has put a FunctionTool in the function's place
        return True, function(**arguments)
    except BaseException as exc:
        traceback.print_exc()
        return False, f"{type(exc).__name__}: {exc}"
