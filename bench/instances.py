"""Two Headraces on one Redis: what a shared log costs, and how soon one instance takes over from the other.

Redis keeps an append-only file, synced every second, on the disk the repository is on. It, both instances and the
client share the machine's cores, so the latencies hold for a busy machine.
"""

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median, quantiles

import msgspec

from bench.contestants import Contestant, Serving, serving
from bench.load import Job, Outcome
from bench.measures import ENDLESS, Effort, Numbers, out_of_step, run_load
from bench.model import Plan
from bench.process import ServerFailed, children, cpu_seconds, free_port, running, scratch, server_core

STREAMS, RATE = 100, 20
FOLLOWERS = 20


class Shared(msgspec.Struct, frozen=True):
    """The instances and the Redis between them; one instance and no Redis for the embedded store."""

    instances: list[Serving]
    redis_port: int | None = None
    redis_pid: int | None = None

    @property
    def ports(self) -> tuple[int, ...]:
        return tuple(instance.port for instance in self.instances)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(pid for instance in self.instances for pid in children(instance.pid))


@contextmanager
def shared(contestant: Contestant) -> Iterator[Shared]:
    """The contestant `headrace-redis` as two instances on a Redis of their own, any other one by itself."""
    with ExitStack() as stack:
        if contestant.name != "headrace-redis":
            yield Shared([stack.enter_context(serving(contestant))])
            return
        port, folder = free_port(), stack.enter_context(scratch())
        server = shutil.which("redis-server") or shutil.which("valkey-server")
        if server is None:
            raise ServerFailed("There is no redis-server here: apt-get install redis-server.")
        flags = f"--port {port} --bind 127.0.0.1 --appendonly yes --appendfsync everysec --save".split()
        command = [server, *flags, "", "--dir", str(folder)]
        redis = stack.enter_context(running(command, port, folder / "server.log", {}, cores=server_core()))
        settings = contestant.settings | {"HEADRACE_LOG__URL": f"redis://127.0.0.1:{port}"}
        ours = msgspec.structs.replace(contestant, settings=settings)
        yield Shared([stack.enter_context(serving(ours)) for _ in range(2)], port, redis)


def shared_load(contestant: Contestant, effort: Effort, *, rate: float = RATE) -> Numbers:
    """100 streams, each at the instance that owns its run: latency, and CPU per event."""
    with shared(contestant) as servers:
        requests = [contestant.start_request(one) for one in out_of_step(Plan(tokens=ENDLESS, rate=rate, first=1.0))]
        return _loaded(servers, requests, servers.ports, effort, rate=rate)


def shared_crossed(contestant: Contestant, effort: Effort) -> Numbers:
    """The same, with each stream at the instance that does not own its run."""
    with shared(contestant) as servers:
        plans = out_of_step(Plan(tokens=ENDLESS, rate=RATE, first=3.0))
        runs = [start(servers.ports[n % 2], plans[n % len(plans)]) for n in range(STREAMS)]
        return _loaded(servers, [follow_request(run) for run in runs], servers.ports[::-1], effort, rate=RATE)


def _loaded(servers: Shared, requests: list[str], ports: tuple[int, ...], effort: Effort, *, rate: float) -> Numbers:
    redis = (servers.redis_pid,) if servers.redis_pid else ()
    job = Job(
        port=ports[0],
        ports=ports,
        requests=tuple(requests),
        streams=STREAMS,
        seconds=max(3.0, effort.seconds),
        sample=1,
        pids=servers.pids,
    )
    began, redis_before = time.monotonic(), cpu_seconds(redis)
    with run_load(job) as client:
        out, _ = client.communicate(timeout=job.seconds + 180)
    got = msgspec.json.decode(out, type=Outcome)
    redis_share = (cpu_seconds(redis) - redis_before) / (time.monotonic() - began)
    assert got.latency is not None, "no stamp was read"
    return {
        "p50_us": got.latency.p50,
        "p99_us": got.latency.p99,
        "us_per_event": got.server_cpu / got.events * 1e6,
        "offered_share": got.events / got.seconds / (STREAMS * rate),
        "redis_core_share": redis_share,
    }


def shared_reads(contestant: Contestant, effort: Effort) -> Numbers:
    """Twenty followers of one run at the instance that does not own it: reads of Redis per record."""
    with shared(contestant) as servers:
        run = start(servers.ports[0], Plan(tokens=ENDLESS, rate=RATE, first=1.0))
        job = Job(
            port=servers.ports[1], requests=(follow_request(run),), streams=FOLLOWERS, seconds=effort.seconds, sample=1
        )
        with run_load(job) as client:
            time.sleep(2.0)
            before, began = _range_reads(servers), time.monotonic()
            client.wait(60)
            reads, seconds = _range_reads(servers) - before, time.monotonic() - began
        return {"followers": FOLLOWERS, "reads_per_record": reads / (seconds * RATE)}


def shared_takeover(contestant: Contestant, effort: Effort) -> Numbers:
    """SIGKILL for the owner: seconds from its death to the run's next record, at a follower of the other instance."""
    times = []
    for _ in range(3):
        with shared(contestant) as servers:
            run = start(servers.ports[0], Plan(tokens=ENDLESS, rate=RATE, first=0.1))
            with urllib.request.urlopen(_events_url(servers.ports[1], run), timeout=60) as stream:
                _next_record(stream)
                _kill(servers.instances[0])
                died = time.monotonic()
                while True:
                    kind = _next_record(stream)
                    if time.monotonic() - died > 0.5 or kind == "run.recovered":
                        break
                times.append(time.monotonic() - died)
    return {"p50_s": median(times), "worst_s": max(times)}


def shared_cancel(contestant: Contestant, effort: Effort) -> Numbers:
    """Cancelling at the instance that does not own the run: until it is acknowledged, and until the run has ended."""
    acknowledged, ended = [], []
    with shared(contestant) as servers:
        for _ in range(effort.probes):
            run = start(servers.ports[0], Plan(tokens=ENDLESS, rate=RATE, first=0.01))
            with urllib.request.urlopen(_events_url(servers.ports[1], run), timeout=60) as stream:
                while _next_record(stream) != "text.delta":
                    pass
                began = time.monotonic()
                request = urllib.request.Request(f"http://127.0.0.1:{servers.ports[1]}/v1/runs/{run}/cancel", b"")
                with urllib.request.urlopen(request, timeout=60):
                    acknowledged.append((time.monotonic() - began) * 1e3)
                while _next_record(stream) not in ("run.finished", "run.error"):
                    pass
                ended.append((time.monotonic() - began) * 1e3)
    return {
        "acknowledged_p50_ms": median(acknowledged),
        "acknowledged_p99_ms": quantiles(acknowledged, n=100)[98],
        "ended_p50_ms": median(ended),
        "ended_p99_ms": quantiles(ended, n=100)[98],
    }


def start(port: int, plan: Plan) -> str:
    """Begin a run that nobody follows yet; its id."""
    body = json.dumps({"input": str(plan)}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/runs", body, {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["run_id"])


def follow_request(run_id: str) -> str:
    return f"GET /v1/runs/{run_id}/events HTTP/1.1\r\nHost: bench\r\nAccept: text/event-stream\r\n\r\n"


def _events_url(port: int, run_id: str) -> str:
    return f"http://127.0.0.1:{port}/v1/runs/{run_id}/events"


def _next_record(stream: Iterator[bytes]) -> str:
    """The type of the next record."""
    for line in stream:
        if line.startswith(b"event: "):
            return line[7:].decode().strip()
    raise ConnectionError("the stream ended")


def _range_reads(servers: Shared) -> int:
    assert servers.redis_port is not None
    command = ["redis-cli", "-p", str(servers.redis_port), "info", "commandstats"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    calls = [line for line in told.splitlines() if line.startswith("cmdstat_xrange:")]
    return sum(int(line.partition("calls=")[2].partition(",")[0]) for line in calls)


def _kill(instance: Serving) -> None:
    os.killpg(instance.pid, signal.SIGKILL)
