"""What is measured: each function starts a contestant afresh and returns numbers by name. README.md says how."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median, quantiles

import msgspec

from bench.contestants import Contestant, Serving, serving
from bench.load import Job, Outcome
from bench.model import Plan
from bench.probe import ask, delta_sizes, first_token
from bench.process import children, client_core, environment, on_core
from bench.rivals import ROOT

Numbers = dict[str, float]
ENDLESS = 1_000_000_000
_PHASES = 20
_PHASE_ORDER = [step * 7 % _PHASES for step in range(_PHASES)]


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How long and how much: `--quick` is for a look, the default for RESULTS.md."""

    seconds: float = 3.0
    probes: int = 100
    idle_streams: int = 1000
    buffered: int = 10_000
    many_streams: int = 2000


QUICK = Effort(seconds=1.5, probes=40, idle_streams=200, buffered=10_000, many_streams=500)


def apply_load(server: Serving, plan: Plan, *, streams: int, seconds: float, sample: int = 0) -> Outcome:
    """Run the load client beside a server and wait for what it found."""
    with loading(server, plan, streams=streams, seconds=seconds, sample=sample) as client:
        out, _ = client.communicate(timeout=seconds + 180)
    return msgspec.json.decode(out, type=Outcome)


def out_of_step(plan: Plan) -> list[Plan]:
    """The same plan with its first token spread over one period: real streams do not speak in chorus."""
    period = 1 / plan.rate if plan.rate else 0.0
    return [plan._replace(first=plan.first + period * step / _PHASES) for step in _PHASE_ORDER]


@contextmanager
def loading(
    server: Serving, plan: Plan, *, streams: int, seconds: float, sample: int = 0
) -> Iterator["subprocess.Popen[bytes]"]:
    job = Job(
        port=server.port,
        requests=tuple(server.contestant.start_request(one) for one in out_of_step(plan)),
        streams=streams,
        seconds=seconds,
        ramp=60 if server.contestant.dialect == "agno" else 20,
        sample=sample,
        pids=tuple(children(server.pid)),
    )
    with run_load(job) as client:
        yield client


@contextmanager
def run_load(job: Job) -> Iterator["subprocess.Popen[bytes]"]:
    """The load client with its job: it prints an Outcome. Leaving stops it."""
    command = [sys.executable, "-m", "bench.load"]
    with on_core(client_core()):
        client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=environment())
    assert client.stdin is not None
    client.stdin.write(msgspec.json.encode(job))
    client.stdin.close()
    client.stdin = None
    try:
        yield client
    finally:
        client.kill()
        client.wait()


def cost(contestant: Contestant, streams: int, rate: float, effort: Effort) -> Numbers:
    """CPU of the server per event, with `streams` at `rate` offered each."""
    slow_start = 0.08 * streams if contestant.dialect == "agno" else 0.0  # it starts few runs once the flood has begun
    plan = Plan(tokens=ENDLESS, rate=rate, first=1.0 + slow_start)
    with serving(contestant) as server:
        got = apply_load(server, plan, streams=streams, seconds=effort.seconds)
    us = got.server_cpu / got.events * 1e6
    return {
        "us_per_event": us,
        "events_per_core": 1e6 / us,
        "events_per_s": got.events / got.seconds,
        "offered_share": got.events / got.seconds / (streams * rate),
        "client_share": got.client_share,
        "merged_share": got.merged / got.events,
        "started": got.started,
    }


def latency(contestant: Contestant, streams: int, rate: float, effort: Effort) -> Numbers:
    """From the moment a token is made to its arrival at the client, in microseconds."""
    with serving(contestant) as server:
        plan = Plan(tokens=ENDLESS, rate=rate, first=0.5)
        got = apply_load(server, plan, streams=streams, seconds=max(3.0, effort.seconds), sample=1)
    assert got.latency is not None, "no stamp was read"
    return {"p50_us": got.latency.p50, "p99_us": got.latency.p99, "us_per_event": got.server_cpu / got.events * 1e6}


def many(contestant: Contestant, rate: float, effort: Effort) -> Numbers:
    """Are thousands of streams held? Age counts from when a token was due, so a late loop shows."""
    plan = Plan(tokens=ENDLESS, rate=rate, first=3.0, stamp="due")
    with serving(contestant) as server:
        got = apply_load(server, plan, streams=effort.many_streams, seconds=effort.seconds * 2, sample=10)
    assert got.latency is not None, "no stamp was read"
    return {
        "streams": effort.many_streams,
        "started": got.started,
        "delivered_share": got.events / got.seconds / (effort.many_streams * rate),
        "late_p50_ms": got.latency.p50 / 1e3,
        "late_p99_ms": got.latency.p99 / 1e3,
        "core_share": got.server_cpu / got.seconds,
        "client_share": got.client_share,
    }


def first(contestant: Contestant, beside: int, effort: Effort) -> Numbers:
    """Added time to first token, one request at a time, beside so many other streams at 20/s.

    The model waits 0 s, and its second token comes 5 ms later: none ends its answer in the tick of its first token.
    """
    request = contestant.start_request(Plan(tokens=2, rate=200))
    with serving(contestant) as server, on_core(client_core()):
        for _ in range(10):
            first_token(server.port, request)
        times = _beside(server, beside, lambda: [first_token(server.port, request) for _ in range(effort.probes)])
    return {"p50_ms": median(times) * 1e3, "p99_ms": quantiles(times, n=100)[98] * 1e3, "min_ms": min(times) * 1e3}


def _beside(server: Serving, streams: int, work: Callable[[], list[float]]) -> list[float]:
    if not streams:
        return work()
    with loading(server, Plan(tokens=ENDLESS, rate=20), streams=streams, seconds=300):
        time.sleep(2.0)
        return work()


def wire(contestant: Contestant) -> Numbers:
    """Bytes for one token of five characters: the event, and the event in its HTTP chunk."""
    with serving(contestant) as server:
        request = contestant.start_request(Plan(tokens=300, rate=200))
        answer = ask(server.port, request, until=b"\r\n0\r\n\r\n")
    frame, wired = delta_sizes(answer.raw)
    return {"frame_bytes": frame, "wire_bytes": wired}
