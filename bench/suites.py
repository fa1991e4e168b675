"""Which measures a command takes and of whom, round by round: everybody once, then everybody again."""

from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from bench.contestants import Contestant, contestants
from bench.instances import shared_cancel, shared_crossed, shared_load, shared_reads, shared_takeover
from bench.measures import QUICK, Effort, Numbers, cost, first, latency, many, wire
from bench.memory import buffered, following, idle, stalled
from bench.process import precedence, say
from bench.resume import resume
from bench.sockets import shared_socket

STREAMING = ("model", "floor", "naive", "headrace", "headrace-memory", "headrace-fsync", "agno")
SERVERS = ("floor", "naive", "headrace", "agno")
OURS = ("headrace",)
DURABLE = ("headrace", "agno")
STORES = ("headrace", "headrace-redis")


class Measure(msgspec.Struct, frozen=True):
    """A row of the table: `take` is run on each of `who`. A slow one is taken once, whatever the rounds.

    A `light` one leaves the machine mostly idle, so that it may be given precedence over other work on it.
    """

    name: str
    title: str
    take: Callable[[Contestant, Effort], Numbers]
    who: tuple[str, ...] = SERVERS
    once: bool = False
    light: bool = False


def _cost(contestant: Contestant, effort: Effort, *, streams: int, rate: float) -> Numbers:
    return cost(contestant, streams, rate, effort)


def _latency(contestant: Contestant, effort: Effort) -> Numbers:
    return latency(contestant, 20, 20, effort)


def _first(contestant: Contestant, effort: Effort, *, beside: int) -> Numbers:
    return first(contestant, beside, effort)


def _wire(contestant: Contestant, _: Effort) -> Numbers:
    return wire(contestant)


def _many(contestant: Contestant, effort: Effort) -> Numbers:
    return many(contestant, 20, effort)


STREAM = (
    Measure("cost_200x200", "200 streams x 200/s offered", partial(_cost, streams=200, rate=200), STREAMING),
    Measure("cost_500x200", "500 streams x 200/s offered", partial(_cost, streams=500, rate=200), STREAMING[:4]),
    Measure("cost_50x200", "50 streams x 200/s offered", partial(_cost, streams=50, rate=200), DURABLE),
    Measure("cost_200x20", "200 streams x 20/s", partial(_cost, streams=200, rate=20), SERVERS),
    Measure("first_0", "first token, one at a time", partial(_first, beside=0), light=True),
    Measure("first_20", "first token beside 20 streams", partial(_first, beside=20), light=True),
    Measure("latency", "20 streams x 20/s", _latency, STREAMING[1:], light=True),
    Measure("many", "thousands of streams x 20/s", _many, SERVERS[:3]),
    Measure("wire", "one 5-byte token on the wire", _wire, once=True),
)
RESUME = (
    Measure("resume_live", "10,000 buffered events, live run", partial(resume, live=True), DURABLE, light=True),
    Measure("resume_ended", "10,000 buffered events, ended run", partial(resume, live=False), DURABLE, light=True),
    Measure("buffered", "100,000 buffered events of a live run", buffered, OURS, once=True),
    Measure("stalled", "followers that never read", stalled, OURS, once=True),
    Measure("socket", "20 runs on one WebSocket", shared_socket, OURS),
)
IDLE = (
    Measure("idle", "runs, each with its stream, that wait for the model", idle, once=True),
    Measure("following", "streams that follow one waiting run", following, OURS, once=True),
)
SHARED = (
    Measure("shared_load", "2,000 events/s at the runs' owners", shared_load, STORES),
    Measure("shared_busy", "20,000 events/s offered at the runs' owners", partial(shared_load, rate=200), STORES),
    Measure("shared_crossed", "2,000 events/s, each followed at the other instance", shared_crossed, STORES[1:]),
    Measure("shared_reads", "20 followers at the other instance", shared_reads, STORES[1:], once=True),
    Measure("shared_cancel", "cancelling at the other instance", shared_cancel, STORES[1:], once=True),
    Measure("shared_takeover", "SIGKILL of the owner", shared_takeover, STORES[1:], once=True),
)
SUITES: dict[str, tuple[Measure, ...]] = {
    "stream": STREAM,
    "resume": RESUME,
    "idle": IDLE,
    "shared": SHARED,
    "all": (*STREAM, *RESUME, *IDLE, *SHARED),
}

Results = dict[str, dict[str, list[Numbers]]]
"""measure → contestant → one set of numbers per round"""


def take(
    suite: tuple[Measure, ...], *, rounds: int, quick: bool, only: tuple[str, ...] | None, ahead: bool = False
) -> Results:
    """Take all measures, interleaved. A contestant that fails is said and left out of that round.

    `ahead` gives light measures, server, client and all, precedence over other work on the machine. Interrupted, it
    returns what there is.
    """
    effort = QUICK if quick else Effort()
    results: Results = {}
    try:
        for turn, measure, contestant in _order(suite, rounds, only):
            with precedence(ahead and measure.light):
                numbers = _attempt(measure, contestant, effort, turn)
            if numbers is not None:
                results.setdefault(measure.name, {}).setdefault(contestant.name, []).append(numbers)
    except KeyboardInterrupt:
        say("interrupted: what follows is incomplete")
    return results


def _order(
    suite: tuple[Measure, ...], rounds: int, only: tuple[str, ...] | None
) -> Iterator[tuple[int, Measure, Contestant]]:
    for turn in range(rounds):
        for measure in suite:
            if measure.once and turn:
                continue
            names = [name for name in measure.who if only is None or name in only]
            for contestant in contestants(names):
                yield turn, measure, contestant


def _attempt(measure: Measure, contestant: Contestant, effort: Effort, turn: int) -> Numbers | None:
    try:
        numbers = measure.take(contestant, effort)
    except Exception as exc:  # a rival that breaks must not end the run of the others
        say(f"round {turn + 1} · {measure.name} · {contestant.name}: failed: {type(exc).__name__}: {exc}")
        return None
    shown = " ".join(f"{name}={value:.4g}" for name, value in numbers.items())
    say(f"round {turn + 1} · {measure.name} · {contestant.name}: {shown}")
    return numbers
