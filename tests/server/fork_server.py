"""Imports Headrace once, then forks a server for every line it reads, and prints its pid.

Each server is a real process with its own memory, files and sockets, and dies of a real SIGKILL; what is saved is a
second of imports, fifty times.
"""

import os
import signal
import sys
from importlib import import_module

from headrace.cli import main

for name in ("headrace.cli.serve", "uvicorn.protocols.websockets.websockets_sansio_impl", "uvloop"):
    import_module(name)


def serve_until_told_otherwise() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them: they leave no zombie
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os._exit(main(["serve", sys.argv[1]]))
        print(pid, flush=True)


if __name__ == "__main__":
    serve_until_told_otherwise()
