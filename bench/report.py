"""Results as a table: median and spread over the rounds; ratios are made within a round, then their median."""

import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from statistics import median

import msgspec

from bench.contestants import NAMES
from bench.measures import Numbers
from bench.rivals import AGNO, ROOT, package_versions
from bench.sections import write_above
from bench.suites import SUITES, Results

RESULTS = ROOT / "bench" / "RESULTS.md"
_OURS = ("headrace", "uvicorn", "uvloop", "httptools", "msgspec", "starlette")
CODE = ("src", "bench", "pyproject.toml", ":!bench/RESULTS.md")
"""What makes the numbers. RESULTS.md is written by the measures themselves."""

_THEIRS = ("agno", "fastapi", "starlette", "uvicorn", "uvloop", "SQLAlchemy")


Value = Callable[[Results], list[float]]
"""One number per round."""


class Goal(msgspec.Struct, frozen=True):
    """What Headrace wants to reach: `most` or `least` bounds the median."""

    text: str
    value: Value
    most: float | None = None
    least: float | None = None

    def met(self, value: float) -> bool:
        return (self.most is None or value <= self.most) and (self.least is None or value >= self.least)


def own(measure: str, field: str, name: str = "headrace") -> Value:
    return lambda results: [numbers[field] for numbers in results.get(measure, {}).get(name, [])]


def versus(measure: str, field: str, other: str, combine: Callable[[float, float], float]) -> Value:
    """Ours and the other's of the same round, combined."""
    mine, theirs = own(measure, field), own(measure, field, other)
    return lambda results: [combine(a, b) for a, b in zip(mine(results), theirs(results), strict=False)]


def _ratio(a: float, b: float) -> float:
    return a / b


def _minus(a: float, b: float) -> float:
    return a - b


def in_ms(measure: str, field: str) -> Value:
    return lambda results: [us / 1e3 for us in own(measure, field, "headrace-redis")(results)]


def over_embedded(measure: str) -> Value:
    """CPU per event on Redis, both instances together, over the embedded store's."""
    mine, embedded = own(measure, "us_per_event", "headrace-redis"), own(measure, "us_per_event")
    return lambda results: [a / b for a, b in zip(mine(results), embedded(results), strict=False)]


def _cancelled(field: str) -> Value:
    return own("shared_cancel", field, "headrace-redis")


# fmt: off
GOALS = (
    Goal("CPU/event over naive, 200 streams", versus("cost_200x200", "us_per_event", "naive", _ratio), most=1.35),
    Goal("CPU/event over naive, 500 streams", versus("cost_500x200", "us_per_event", "naive", _ratio), most=1.35),
    Goal("CPU/event over floor, 200 streams", versus("cost_200x200", "us_per_event", "floor", _ratio), most=2.5),
    Goal("CPU/event over floor, 500 streams", versus("cost_500x200", "us_per_event", "floor", _ratio), most=2.5),
    Goal("durable events/s per core, 500 streams", own("cost_500x200", "events_per_core"), least=25_000),
    Goal("events/s per core over Agno, 200", versus("cost_200x200", "events_per_core", "agno", _ratio), least=15),
    Goal("events/s per core over Agno, 50", versus("cost_50x200", "events_per_core", "agno", _ratio), least=15),
    Goal("latency p50 beyond naive's, µs", versus("latency", "p50_us", "naive", _minus), most=150),
    Goal("2,000 streams x 20/s: share delivered", own("many", "delivered_share"), least=0.99),
    Goal("first token p50 over naive", versus("first_0", "p50_ms", "naive", _ratio), most=1.5),
    Goal("first token p50 over Agno", versus("first_0", "p50_ms", "agno", _ratio), most=1 / 8),
    Goal("idle stream, kB", own("following", "kb_per_stream"), most=12),
    Goal("idle run and its stream, kB", own("idle", "kb_per_stream"), most=12),
    Goal("buffered event of a live run beyond its frame, bytes", own("buffered", "bytes_beyond_frame"), most=64),
    Goal("5-byte delta on the wire, bytes", own("wire", "wire_bytes"), most=90),
    Goal("resume among 10,000 of a live run: first, ms", own("resume_live", "first_ms"), most=5),
    Goal("resume among 10,000 of a live run: all, ms", own("resume_live", "all_ms"), most=50),
    Goal("resume among 10,000 of an ended run: first, ms", own("resume_ended", "first_ms"), most=5),
    Goal("resume among 10,000 of an ended run: all, ms", own("resume_ended", "all_ms"), most=50),
    Goal("follower that stopped reading, kB", own("stalled", "kb_per_follower"), most=64),
    Goal("latency of others beside 1,000 of them, ratio", own("stalled", "others_p50_ratio"), most=1.5),
    Goal("Redis: latency p50 at 2,000 events/s, ms", in_ms("shared_crossed", "p50_us"), most=2),
    Goal("Redis: latency p99 at 2,000 events/s, ms", in_ms("shared_crossed", "p99_us"), most=15),
    Goal("Redis: CPU/event over the embedded store's, 2,000/s", over_embedded("shared_load"), most=2),
    Goal("Redis: CPU/event over the embedded store's, 20,000/s offered", over_embedded("shared_busy"), most=2),
    Goal("Redis: reads per record for 20 followers", own("shared_reads", "reads_per_record", "headrace-redis"), most=1),
    Goal("cancel at the other instance: acknowledged p99, ms", _cancelled("acknowledged_p99_ms"), most=100),
    Goal("cancel at the other instance: ended p99, ms", _cancelled("ended_p99_ms"), most=250),
    Goal("SIGKILL to the next record, s", own("shared_takeover", "worst_s", "headrace-redis"), most=5),
    Goal("records per read on one WebSocket", own("socket", "records_per_receive"), least=1.5),
)
# fmt: on


def tables(results: Results) -> str:
    return "\n\n".join(["\n".join(_goals(results)), *("\n".join(table) for table in _measures(results))]) + "\n"


def _goals(results: Results) -> Iterator[str]:
    yield "## Goals\n"
    yield "| goal | wanted | measured, median [rounds] | |"
    yield "|---|---|---|---|"
    for goal in GOALS:
        values = goal.value(results)
        if values:
            wanted = f"≤ {goal.most:.4g}" if goal.most is not None else f"≥ {goal.least:.4g}"
            verdict = "met" if goal.met(median(values)) else "**missed**"
            yield f"| {goal.text} | {wanted} | {shown(values)} | {verdict} |"


def _measures(results: Results) -> Iterator[list[str]]:
    for measure in SUITES["all"]:
        taken = results.get(measure.name)
        if taken:
            names = [name for name in NAMES if name in taken]
            fields = list(next(iter(taken.values()))[0])
            yield [
                f"## {measure.name}: {measure.title}\n",
                f"| | {' | '.join(names)} |",
                f"|---|{'---|' * len(names)}",
                *(f"| {field} | {' | '.join(_cell(taken[name], field) for name in names)} |" for field in fields),
            ]


def _cell(rounds: list[Numbers], field: str) -> str:
    return shown([numbers[field] for numbers in rounds if field in numbers])


def shown(values: list[float]) -> str:
    """The median, and the least and greatest where there are several."""
    if not values:
        return "-"
    if len(values) == 1:
        return _number(values[0])
    return f"{_number(median(values))} [{_number(min(values))}-{_number(max(values))}]"


def _number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def machine() -> str:
    """Where and with what this was measured."""
    agno = AGNO / "bin" / "python"
    lines = [
        host(),
        "Headrace and naive: " + versions(_OURS),
    ]
    if agno.exists():
        lines.append("Agno: " + _versions(package_versions(agno, _THEIRS)) + ".")
    return "\n".join(lines)


def host() -> str:
    """When, on what machine and with which code, as a sentence."""
    system = f"Linux {platform.release()}, Python {platform.python_version()}"
    return f"{datetime.now(UTC):%Y-%m-%d}, {_cpu()}, {system}, commit {commit()}."


@cache
def commit() -> str:
    """Of the code that this process runs, as it was when this was first asked for; with a `+` where the code is not
    what was committed, `unknown` where there is no repository."""
    try:
        name = _git("rev-parse", "--short=9", "HEAD").strip()
        return f"{name}+" if _git("status", "--porcelain", "--", *CODE) else name
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _git(*words: str) -> str:
    command = ("git", "-C", str(ROOT), *words)
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def versions(packages: tuple[str, ...]) -> str:
    """Of what is installed here, as a sentence."""
    return _versions(package_versions(Path(sys.executable), packages)) + "."


def _versions(found: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items())


def _cpu() -> str:
    text = Path("/proc/cpuinfo").read_text()
    models = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return f"{len(models)} cores of {models[0] if models else platform.machine()}"


def write_results(results: Results, command: str) -> Path:
    """Write RESULTS.md anew, down to the line below which stands what other commands measured."""
    intro = "How each number is taken: [README.md](README.md). Trust the ratios more than the absolutes.\n"
    write_above(RESULTS, f"# Results\n\n`{command}`\n\n{machine()}\n\n{intro}\n{tables(results)}")
    return RESULTS
