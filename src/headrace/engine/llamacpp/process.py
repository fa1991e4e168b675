"""The embedded server's process, as a server sees it: found or started, ready, gone."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import cast

import msgspec

from headrace.engine.child import open_process_log
from headrace.engine.cores import model_environment
from headrace.engine.llamacpp.child import Order
from headrace.engine.llamacpp.parameters import (
    LlamaCppParameters,
    ProcessAddress,
    ProcessState,
    folder,
    locked,
    read_address,
)
from headrace.engine.llamacpp.reception import GOODBYE
from headrace.errors import EngineUnavailable

_STOP = 2.0  # seconds until a process that should end is killed
_LOADS = 120.0  # seconds that another one's process may take to load; after that we start our own


class LlamaCppProcess:
    """Use `reach`; `leave` in any case. `found` says that somebody else had started it."""

    def __init__(self, address: ProcessAddress, held: "_Held", state: ProcessState) -> None:
        self.pid = address.pid
        self.api_key = address.secret
        self.url = state.url
        self.embedder = state.embedder
        self.found = held.found
        self._held = held

    @classmethod
    async def reach(
        cls, parameters: LlamaCppParameters, *, home: Path | None, log: Path, check: Callable[[], None]
    ) -> "LlamaCppProcess":
        """The ready process with these parameters: the one that is found in `home`, or a new one.

        Two servers that come at once get the same one. `check` is called before one is started. Raises what it raises,
        and EngineUnavailable, saying why there is none.
        """
        ended: set[int] = set()
        while True:
            try:
                address, held = await _find_or_start(parameters, home, log, check=check, ended=ended)
            except OSError as exc:
                hint = f"It writes its log to {log}."
                raise EngineUnavailable(f"The embedded engine's process cannot be started: {exc}", hint=hint) from exc
            state = None
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOADS if held.found else None):
                        state = await held.state
            finally:
                if state is None or state.failed:
                    await _leave(held, address.pid, keep=held.found)
            if state is not None and state.url:
                return cls(address, held, state)
            if not held.found:
                raise _not_started(state, log)
            ended.add(address.pid)  # it was just ending, or had failed for somebody else

    async def wait(self) -> None:
        """Wait until it ends."""
        await self._held.gone.wait()

    async def ends_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._held.gone.wait()
                await asyncio.sleep(0.01)  # whoever else waits for its end comes first
        except TimeoutError:
            return False
        return True

    async def leave(self, *, keep: bool) -> None:
        """Let go of it. With `keep` it waits for the next server; else it ends, unless others use it."""
        await _leave(self._held, self.pid, keep=keep)

    def kill(self) -> None:
        """For one that holds the connection but does not answer."""
        _kill(self.pid)


class _Held(asyncio.Protocol):
    """The connection that keeps the process. `state` is None if it closed before anything was said."""

    def __init__(self, secret: str, *, found: bool) -> None:
        self.found = found
        self.gone = asyncio.Event()
        self.state: asyncio.Future[ProcessState | None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.WriteTransport | None = None
        self._secret = secret
        self._heard = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.WriteTransport, transport)
        self.transport.write(self._secret.encode() + b"\n")

    def data_received(self, data: bytes) -> None:
        self._heard += data
        if not self._heard.endswith(b"\n") or self.state.done():
            return
        try:
            self.state.set_result(msgspec.json.decode(self._heard, type=ProcessState))
        except msgspec.DecodeError:  # a stranger on a port that was ours
            self.state.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        if not self.state.done():
            self.state.set_result(None)


_Reached = tuple[ProcessAddress, _Held]


async def _find_or_start(
    parameters: LlamaCppParameters, home: Path | None, log: Path, *, check: Callable[[], None], ended: set[int]
) -> _Reached:
    """Raises EngineUnavailable, OSError, and what `check` raises."""
    if home is None:
        await asyncio.to_thread(check)
        return await _launch(Order(parameters=parameters), log)
    async with _alone_in(folder(home, parameters)) as place:
        address = read_address(place)
        if address is not None and address.pid not in ended and _is_alive(address.pid):
            held = await _hold(address, found=True)
            if held is not None:
                return address, held
        await asyncio.to_thread(check)
        return await _launch(Order(parameters=parameters, place=str(place)), log)


async def _launch(order: Order, log: Path) -> _Reached:
    said = await asyncio.to_thread(_launched, order, log)
    try:
        address = msgspec.json.decode(said, type=ProcessAddress)
    except msgspec.DecodeError:
        raise _not_started(None, log) from None
    held = await _hold(address, found=False)
    if held is None:
        raise _not_started(None, log)
    return address, held


def _launched(order: Order, log: Path) -> bytes:
    """What it says about itself. Nothing of what it is told stands on its command line."""
    with open_process_log(log) as stderr:
        launcher = subprocess.run(
            (sys.executable, "-P", "-m", "headrace.engine.llamacpp.child"),
            input=msgspec.json.encode(order) + b"\n",
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=model_environment(),
            process_group=0,  # the terminal's Ctrl-C is for the server, which then ends this one
            check=False,
        )
    return launcher.stdout


async def _hold(address: ProcessAddress, *, found: bool) -> _Held | None:
    """None when nobody listens there."""
    loop = asyncio.get_running_loop()
    try:
        _, held = await loop.create_connection(lambda: _Held(address.secret, found=found), "127.0.0.1", address.port)
    except OSError:
        return None
    return held


async def _leave(held: _Held, pid: int, *, keep: bool) -> None:
    if held.transport is None or held.gone.is_set():
        return
    if not keep:
        held.transport.write(GOODBYE + b"\n")
        try:
            async with asyncio.timeout(_STOP):
                await held.gone.wait()
        except TimeoutError:
            _kill(pid)
    held.transport.close()
    await held.gone.wait()


def _is_alive(pid: int) -> bool:
    """A stranger may listen on the port of one that is gone."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@contextlib.asynccontextmanager
async def _alone_in(place: Path) -> AsyncIterator[Path]:
    """Nobody else looks for a process or starts one meanwhile."""
    while True:
        with locked(place) as alone:
            if alone:
                yield place
                return
        await asyncio.sleep(0.02)


def _not_started(state: ProcessState | None, log: Path) -> EngineUnavailable:
    reason = state.failed if state is not None else "its process ended while it loaded the model"
    hint = f"Its own words are in {log}. If the model file is damaged, install it again."
    return EngineUnavailable(f"The embedded engine did not start: {reason}.", hint=hint)
