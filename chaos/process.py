"""A process that is killed, frozen and started again, as an init system would start it again."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

Role = Literal["instance", "store", "front"]

_READY_S = 30.0
_LEAVE_S = 40.0
_LOOK_S = 0.02
_RESPAWN_S = 0.2


class NotReady(RuntimeError):
    """It did not come up in half a minute; the message has the end of its output."""


class Process:
    """One server process and its children, in a session of their own. Its output goes to `folder/<name>.log`.

    It counts as up once `port` accepts connections. One that ends by itself while it starts is started again (its
    store may be away). `falls` holds how it ended later when nobody had told it to: that is a bug, and it stays down.
    """

    def __init__(
        self, name: str, role: Role, command: Sequence[str], *, port: int, folder: Path, env: Mapping[str, str]
    ) -> None:
        self.name = name
        self.role = role
        self.port = port
        self.falls: list[str] = []
        self._command = command
        self._folder = folder
        self._env = dict(env)
        self._child: asyncio.subprocess.Process | None = None
        self._told_to_end = False

    @property
    def pid(self) -> int:
        """Of the latest start, 0 before the first."""
        return self._child.pid if self._child else 0

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.returncode is None

    async def start(self) -> None:
        """Raises NotReady."""
        deadline = asyncio.get_running_loop().time() + _READY_S
        while asyncio.get_running_loop().time() < deadline:
            await self._spawn()
            if await self._ready(deadline):
                return
            await asyncio.sleep(_RESPAWN_S)
        raise NotReady(f"{self.name} does not come up:\n{self._tail()}")

    async def kill(self) -> None:
        """SIGKILL, to its children too; returns when it is gone."""
        self._tell(signal.SIGKILL)
        await self._gone()

    async def leave(self) -> None:
        """SIGTERM, and returns when it has left; a process that stays is killed, and has fallen."""
        self._tell(signal.SIGTERM)
        try:
            async with asyncio.timeout(_LEAVE_S):
                await self._gone()
        except TimeoutError:
            self.falls.append(f"{self.name} was told to leave and did not")
            await self.kill()

    def pause(self) -> None:
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        self._send(signal.SIGCONT)

    def reload(self) -> None:
        self._send(signal.SIGHUP)

    def look(self) -> None:
        """Note it if the process has ended by itself."""
        if self._child is not None and self._child.returncode is not None and not self._told_to_end:
            self._told_to_end = True
            self.falls.append(f"{self.name} ended by itself ({self._child.returncode}): {self._tail()}")

    async def _spawn(self) -> None:
        self._told_to_end = False
        with (self._folder / f"{self.name}.log").open("ab") as output:
            self._child = await asyncio.create_subprocess_exec(
                *self._command,
                stdout=output,
                stderr=output,
                stdin=asyncio.subprocess.DEVNULL,
                cwd=self._folder,
                env=self._env,
                start_new_session=True,
            )

    async def _ready(self, deadline: float) -> bool:
        """False when it has ended. One that does not answer in time is killed."""
        while self.running:
            if accepts(self.port):
                return True
            if asyncio.get_running_loop().time() > deadline:
                await self.kill()
            await asyncio.sleep(_LOOK_S)
        return False

    def _tell(self, number: signal.Signals) -> None:
        self._told_to_end = True
        self._send(number)

    def _send(self, number: signal.Signals) -> None:
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, number)

    async def _gone(self) -> None:
        if self._child is not None:
            await self._child.wait()

    def _tail(self) -> str:
        return (self._folder / f"{self.name}.log").read_text(errors="replace")[-2000:]


def accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=0.2):
        return True
    return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment() -> dict[str, str]:
    """Ours, without the settings of a Headrace that somebody may run here."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("HEADRACE", "OPENAI"))}
