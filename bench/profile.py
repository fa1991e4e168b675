"""Where the server's time goes, by function, under load: cProfile inside the server.

It makes calls dearer than they are, so read it for what is called and how often; what a change gains is for `stream`.
"""

import os
import pstats
import signal
import sys
import time
from pathlib import Path

import msgspec

from bench.contestants import Serving, headrace, serving
from bench.measures import ENDLESS, loading
from bench.model import Plan
from bench.probe import first_token

_TOP = 45
_RATE = 200


def profile(*, streams: int, seconds: float) -> int:
    """Print the functions that cost most, at `streams` streams x 200/s; 0 streams: runs of one token, one by one."""
    ours = headrace()
    watched = msgspec.structs.replace(
        ours,
        command=(sys.executable, "-m", "cProfile", "-o", "{DATA}/profile", *ours.command[1:]),
        settings=ours.settings | {"HEADRACE_SERVER__DRAIN_GRACE": "0.1"},
    )
    plan = Plan(tokens=ENDLESS, rate=_RATE, first=1.0)
    with serving(watched) as server:
        if streams:
            with loading(server, plan, streams=streams, seconds=seconds) as client:
                client.wait(seconds + 60)
        else:
            _one_by_one(server, seconds)
        os.kill(server.pid, signal.SIGTERM)
        written = server.folder / "profile"
        if not _appears(written, 60):
            print(f"no profile was written:\n{(server.folder / 'server.log').read_text()[-2000:]}", file=sys.stderr)
            return 1
        pstats.Stats(str(written)).strip_dirs().sort_stats("tottime").print_stats(_TOP)
    return 0


def _one_by_one(server: Serving, seconds: float) -> None:
    request = server.contestant.start_request(Plan(tokens=1))
    ends = time.monotonic() + seconds
    count = 0
    while time.monotonic() < ends:
        first_token(server.port, request)
        count += 1
    print(f"{count} runs of one token")


def _appears(path: Path, within: float) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if path.exists() and path.stat().st_size:
            time.sleep(1.0)
            return True
        time.sleep(0.2)
    return False
