"""How many threads compute the embedded model, and how long one of them spins before it sleeps: on a machine that is
the model's alone, and on one whose every core has other work.

As in `engine_measures.py`, every function opens engines of its own and returns numbers by name.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from statistics import median

from bench.engine_measures import Numbers, asked, embedded, timed
from bench.texts import about
from headrace.engine.cores import model_environment, usable_cores

_VARIABLE = "GOMP_SPINCOUNT"
_ALWAYS = "300000"  # libgomp's own count, where there are no more threads than cores


async def threads(quick: bool) -> Numbers:
    """Tokens/s of a prompt that is read and of an answer: with one thread, with one for each core that sleep as soon as
    Headrace says (`ours`), and as late as GNU's OpenMP says by itself (`gnu`)."""
    cores = usable_cores()
    out: Numbers = {}
    for name, count, spins in (("one", 1, None), ("ours", cores, None), ("gnu", cores, _ALWAYS)):
        with _spinning(spins):
            async with embedded(slots=1, context=512, threads=count) as engine:
                for company, busy in (("alone", 0), ("beside", cores)):
                    with _other_work(busy):
                        taken = [
                            await timed(engine, asked(about(120, turn + 100 * busy), 16 if quick else 32))
                            for turn in range(2 if quick else 3)
                        ]
                    read = median(finish.usage.input_tokens / pieces[0] for pieces, _, finish in taken)
                    said = median((len(pieces) - 1) / (pieces[-1] - pieces[0]) for pieces, _, _ in taken)
                    out |= {f"{name}_{company}_read_per_s": read, f"{name}_{company}_said_per_s": said}
    for company in ("alone", "beside"):
        for number in ("read", "said"):
            one = out[f"one_{company}_{number}_per_s"]
            for name in ("ours", "gnu"):
                out[f"{name}_over_one_{company}_{number}"] = out[f"{name}_{company}_{number}_per_s"] / one
    return out


@contextlib.contextmanager
def _spinning(spins: str | None) -> Iterator[None]:
    """What processes that are started meanwhile find in their environment; None for what Headrace gives them."""
    before = os.environ.pop(_VARIABLE, None)
    os.environ[_VARIABLE] = spins or model_environment()[_VARIABLE]
    try:
        yield
    finally:
        del os.environ[_VARIABLE]
        if before is not None:
            os.environ[_VARIABLE] = before


@contextlib.contextmanager
def _other_work(processes: int) -> Iterator[None]:
    busy = [
        subprocess.Popen((sys.executable, "-c", "while True: pass"), start_new_session=True) for _ in range(processes)
    ]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()
