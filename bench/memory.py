"""What streams cost in memory: idle ones, and followers that have stopped reading."""

import time

from bench.contestants import Contestant, Serving, serving
from bench.load import raise_file_limit
from bench.measures import ENDLESS, Effort, Numbers, apply_load
from bench.model import LAST, Plan
from bench.probe import Held, ask, hold_open
from bench.process import children, client_core, on_core, pss_kb, tcp_memory_kb
from bench.servers.frames import encode_delta

_SMALL_BUFFER = 4096
_STALLED_RATE = 100
_STALLED_BURST = 40_000


def idle(contestant: Contestant, effort: Effort) -> Numbers:
    """Memory of a stream whose model has not said anything yet."""
    raise_file_limit(effort.idle_streams + 200)
    count = effort.idle_streams // 5 if contestant.dialect == "agno" else effort.idle_streams
    request = contestant.start_request(Plan(tokens=1, first=3600))
    with serving(contestant) as server:
        pids = children(server.pid)
        warm = hold_open(server.port, [request] * 50)
        time.sleep(1.0)
        before = pss_kb(pids)
        held = hold_open(server.port, [request] * count)
        time.sleep(2.0)
        grown = pss_kb(pids) - before
        close(warm + held)
    return {"kb_per_stream": grown / count, "streams": count, "base_mb": before / 1024}


def following(contestant: Contestant, effort: Effort) -> Numbers:
    """Memory of a stream alone: one more follower of a run whose model has not said anything yet."""
    raise_file_limit(effort.idle_streams + 200)
    with serving(contestant) as server:
        (run,) = hold_open(server.port, [contestant.start_request(Plan(tokens=1, first=3600))])
        request = contestant.resume_request(run.run_id, 0)
        warm = hold_open(server.port, [request] * 50)
        time.sleep(1.0)
        before = pss_kb(children(server.pid))
        held = hold_open(server.port, [request] * effort.idle_streams)
        time.sleep(2.0)
        grown = pss_kb(children(server.pid)) - before
        close([run, *warm, *held])
    return {"kb_per_stream": grown / effort.idle_streams, "streams": effort.idle_streams}


def buffered(contestant: Contestant, effort: Effort) -> Numbers:
    """Memory of an event that a live run keeps for whoever comes back, beyond the bytes of its frame."""
    count = effort.buffered * 10
    frame = len(encode_delta(count // 2, LAST))
    with serving(contestant) as server, on_core(client_core()):
        _produce(server, effort.buffered)
        before = pss_kb(children(server.pid))
        _produce(server, count)
        grown = pss_kb(children(server.pid)) - before
    return {"bytes_beyond_frame": grown * 1024 / count - frame, "frame_bytes": frame, "events": count}


def _produce(server: Serving, tokens: int) -> None:
    request = server.contestant.start_request(Plan(tokens=tokens, rate=0, linger=600))
    ask(server.port, request, until=f'{LAST}"'.encode(), timeout=120)


def stalled(contestant: Contestant, effort: Effort) -> Numbers:
    """Followers of a live run of 3 MB that ask for everything and never read; and how 20 other streams fare."""
    followers = effort.idle_streams
    raise_file_limit(followers + 200)
    busy = contestant.start_request(Plan(tokens=ENDLESS, rate=_STALLED_RATE, burst=_STALLED_BURST))
    with serving(contestant) as server:
        (run,) = hold_open(server.port, [busy])
        _wait_for_record(server, run.run_id, _STALLED_BURST)
        alone = _others(server, effort)
        pids = children(server.pid)
        before, kernel_before = pss_kb(pids), tcp_memory_kb()
        request = contestant.resume_request(run.run_id, 0)
        held = hold_open(server.port, [request] * followers, receive_buffer=_SMALL_BUFFER)
        time.sleep(3.0)
        settled = pss_kb(pids)
        crowded = _others(server, effort)
        grown, kernel = pss_kb(pids) - before, tcp_memory_kb() - kernel_before
        close([run, *held])
    return {
        "kb_per_follower": grown / followers,
        "kb_per_follower_at_once": (settled - before) / followers,
        "kernel_kb_per_follower": kernel / followers,
        "followers": followers,
        "others_p50_us_before": alone["p50"],
        "others_p50_us": crowded["p50"],
        "others_p50_ratio": crowded["p50"] / alone["p50"],
        "others_p99_us_before": alone["p99"],
        "others_p99_us": crowded["p99"],
    }


def _wait_for_record(server: Serving, run_id: str, seq: int) -> None:
    """A cursor ahead of the head is refused, so ask from there until it is not."""
    request = server.contestant.resume_request(run_id, seq)
    deadline = time.monotonic() + 60
    while not ask(server.port, request, until=b"\r\n\r\n").raw.startswith(b"HTTP/1.1 200"):
        if time.monotonic() > deadline:
            raise TimeoutError(f"record {seq} has not come within a minute")
        time.sleep(0.2)


def _others(server: Serving, effort: Effort) -> Numbers:
    plan = Plan(tokens=ENDLESS, rate=20, first=0.5)
    got = apply_load(server, plan, streams=20, seconds=max(4.0, effort.seconds), sample=1)
    assert got.latency is not None, "no stamp was read"
    return {"p50": got.latency.p50, "p99": got.latency.p99}


def close(held: list[Held]) -> None:
    for one in held:
        one.connection.close()
