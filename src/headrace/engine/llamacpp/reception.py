"""Who uses the embedded server's process, and when it may end.

Each server holds one connection as long as it lives; the kernel closes it even if the server is killed, so there is no
heartbeat, no clock to compare, and no orphan. A server that leaves for good says `goodbye`: with the last of them the
process ends at once. A server that merely vanishes, or leaves the process to its successor, is waited for.
"""

import contextlib
import selectors
import socket
import time
from secrets import compare_digest

import msgspec

from headrace.engine.llamacpp.parameters import ProcessState

GOODBYE = b"goodbye"
_FIRST = 10.0  # seconds in which whoever started the process comes in
_LINE = 4096  # bytes; nobody has more to say


class Attendance:
    """How many are there, and how long an empty house is kept. Seconds of any one clock."""

    def __init__(self, *, linger: float, now: float) -> None:
        self._linger = linger
        self._present = 0
        self._until = now + max(linger, _FIRST)

    def came(self) -> None:
        self._present += 1

    def left(self, now: float, *, for_good: bool) -> None:
        """The last one decides: after a goodbye nobody is waited for."""
        self._present -= 1
        self._until = now if for_good else now + self._linger

    def patience(self, now: float) -> float | None:
        """Seconds until the house is given up, 0.0 when that is now; None while somebody is there."""
        return None if self._present else max(0.0, self._until - now)


class Reception:
    """Lets servers in that know the secret, and tells each of them `state`. It owns the listener."""

    def __init__(self, listener: socket.socket, *, secret: str, state: ProcessState, linger: float) -> None:
        self._listener = listener
        self._secret = secret.encode()
        self._state = msgspec.json.encode(state) + b"\n"
        self._attendance = Attendance(linger=linger, now=time.monotonic())
        self._heard: dict[socket.socket, bytes] = {}
        self._present: set[socket.socket] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def run(self) -> None:
        """Until nobody is there and nobody is waited for. The connections of the last ones stay open: that they close
        says that the process has ended."""
        while (patience := self._attendance.patience(time.monotonic())) != 0.0:
            for key, _ in self._selector.select(patience):
                if key.fileobj is self._listener:
                    self._let_in()
                elif isinstance(key.fileobj, socket.socket):
                    self._listen_to(key.fileobj)

    def _let_in(self) -> None:
        with contextlib.suppress(OSError):
            guest, _ = self._listener.accept()
            self._heard[guest] = b""
            self._selector.register(guest, selectors.EVENT_READ)

    def _listen_to(self, guest: socket.socket) -> None:
        try:
            data = guest.recv(_LINE)
        except OSError:
            data = b""
        *lines, self._heard[guest] = (self._heard[guest] + data).split(b"\n")
        for line in lines:
            if not self._take(guest, line):
                return
        if not data or len(self._heard[guest]) > _LINE:
            self._see_off(guest, for_good=False)

    def _take(self, guest: socket.socket, line: bytes) -> bool:
        """False when it has left."""
        if guest in self._present:
            if line == GOODBYE:
                self._see_off(guest, for_good=True)
                return False
        elif compare_digest(line, self._secret):
            self._present.add(guest)
            self._attendance.came()
            with contextlib.suppress(OSError):
                guest.sendall(self._state)
        else:
            self._see_off(guest, for_good=False)
            return False
        return True

    def _see_off(self, guest: socket.socket, *, for_good: bool) -> None:
        self._selector.unregister(guest)
        del self._heard[guest]
        if guest in self._present:
            self._present.discard(guest)
            now = time.monotonic()
            self._attendance.left(now, for_good=for_good)
            if self._attendance.patience(now) == 0.0:
                return
        guest.close()
