"""What Headrace adds to its embedded engine, measured by somebody else's client: aiperf, in an environment of its own.

`python -m bench.passthrough`, a quarter of an hour. One and the same llama.cpp process is asked by aiperf directly and
through Headrace's Chat Completions, in turns; the prompts are always new, and answers have 48 tokens by its own count.
On a machine that does other work, `--together` is better: both at the same time, with half of the engine each.
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import msgspec

from bench.engine_served import TOKENS, one_engine
from bench.process import say, scratch
from bench.report import host, versions
from bench.rivals import ROOT, environment_of, package_versions
from bench.telling import Telling

sys.path.append(str(ROOT / "tests"))

from tiny_model import learning_text, make_tiny_model

COMMAND = "python -m bench.passthrough"
AIPERF = ("aiperf==0.13.*",)
PROMPT_TOKENS = 64
"""As the tokenizer made here counts them; the model makes fewer of them."""

_WITHIN_S = 600.0
WANTED = {
    "first token, ms": "time_to_first_token",
    "between two tokens, mean of an answer, ms": "inter_token_latency",
    "between two pieces, ms": "inter_chunk_latency",
    "whole answer, ms": "request_latency",
}


class Target(msgspec.Struct, frozen=True):
    name: str
    url: str
    key: str | None = None


class AiperfFailed(RuntimeError):
    """It measured nothing, or not all; the message has what it said."""


class Report(msgspec.Struct, frozen=True):
    """p50 and p99 of what was wanted by its name here, and answers per second. Milliseconds."""

    percentiles: dict[str, tuple[float, float]]
    answers_per_s: float


def read_report(body: bytes, *, answers: int) -> Report:
    """aiperf's `profile_export_aiperf.json`. Raises AiperfFailed if it does not tell of `answers` good ones."""
    report = msgspec.json.decode(body)
    counted = report.get("request_count", {}).get("avg", 0)
    if counted != answers:
        raise AiperfFailed(f"{counted:g} of {answers} answers were good: {report.get('error_summary')}")
    for name in WANTED.values():
        if report[name]["unit"] != "ms":
            raise AiperfFailed(f"{name} is in {report[name]['unit']}, not in ms")
    return Report(
        percentiles={text: (report[name]["p50"], report[name]["p99"]) for text, name in WANTED.items()},
        answers_per_s=report["request_throughput"]["avg"],
    )


class Aiperf:
    """`folder` holds the tokenizer that it makes prompts with, and what it writes."""

    def __init__(self, python: Path, folder: Path) -> None:
        self._program = python.with_name("aiperf")
        self._folder = folder
        self._runs = 0
        make_tiny_model(folder / "tokenizer", text=learning_text())

    async def profile(self, target: Target, *, streams: int, answers: int) -> Report:
        self._runs += 1
        place = self._folder / str(self._runs)
        command = self._command(target, place, streams, answers)
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=self._folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with asyncio.timeout(_WITHIN_S):
            said, _ = await process.communicate()
        report = place / "profile_export_aiperf.json"
        if process.returncode != 0 or not report.exists():
            raise AiperfFailed(f"aiperf ended with {process.returncode}:\n{said.decode(errors='replace')[-2000:]}")
        return read_report(report.read_bytes(), answers=answers)

    def _command(self, target: Target, place: Path, streams: int, answers: int) -> Sequence[str]:
        load = {
            "--concurrency": streams,
            "--request-count": answers,
            "--warmup-request-count": streams,
            "--conversation-num": streams + answers,  # else the warm-up's prompts come again
            "--isl": PROMPT_TOKENS,
            "--osl": TOKENS,
            "--extra-inputs": "ignore_eos:true",
            "--connection-reuse-strategy": "never",  # llama.cpp's server closes kept ones just when they are used again
            "--random-seed": self._runs,  # new prompts: nothing of them is in the engine's cache
            "--workers-max": 1,
            "--record-processors": 1,
        }
        asked = {"--model": "bench", "--url": target.url, "--endpoint-type": "chat", "--tokenizer": "./tokenizer"}
        if target.key is not None:
            asked["--api-key"] = target.key
        words = [
            str(word) for pair in {**asked, **load, "--ui": "none", "--artifact-dir": place}.items() for word in pair
        ]
        flags = ("--streaming", "--use-server-token-count", "--no-gpu-telemetry", "--no-server-metrics")
        return (str(self._program), "profile", *words, *flags)


async def measure(
    aiperf: Aiperf, *, streams: int, answers: int, rounds: int, together: bool
) -> list[tuple[Report, Report]]:
    """Of each round the report on the engine itself and the one on Headrace; who comes first changes."""
    async with one_engine() as (server, process):
        direct = Target("the engine itself", process.url, process.api_key)
        headrace = Target("through Headrace", f"http://127.0.0.1:{server.port}")

        async def take(target: Target) -> Report:
            return await aiperf.profile(target, streams=streams, answers=answers)

        pairs = []
        for turn in range(rounds):
            order = (direct, headrace) if turn % 2 == 0 else (headrace, direct)
            reports = await asyncio.gather(*map(take, order)) if together else [await take(target) for target in order]
            taken = dict(zip(order, reports, strict=True))
            pairs.append((taken[direct], taken[headrace]))
            say(f"{streams} streams, round {turn + 1} of {rounds}\n{table(pairs[-1:])}")
    return pairs


def table(pairs: list[tuple[Report, Report]]) -> str:
    """Medians over the rounds; a ratio is made within a round."""
    lines = ["| | the engine itself | through Headrace | ratio [rounds] |", "|---|---|---|---|"]
    for text in WANTED:
        for at, percentile in enumerate(("p50", "p99")):
            values = [(bare.percentiles[text][at], ours.percentiles[text][at]) for bare, ours in pairs]
            lines.append(_row(f"{text}, {percentile}", values))
    lines.append(_row("answers per second", [(bare.answers_per_s, ours.answers_per_s) for bare, ours in pairs]))
    return "\n".join(lines)


def _row(text: str, values: list[tuple[float, float]]) -> str:
    bare, ours = (median(pair[side] for pair in values) for side in (0, 1))
    ratios = [ours / bare for bare, ours in values]
    return f"| {text} | {bare:.4g} | {ours:.4g} | {median(ratios):.3f} [{min(ratios):.3f}-{max(ratios):.3f}] |"


def main() -> int:
    given = _parser().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that whoever was started is stopped
    python = environment_of("aiperf", AIPERF, "aiperf")
    if python is None:
        return 2
    tell = Telling("pass-through, by an independent client", COMMAND)
    client = f"aiperf {package_versions(python, ('aiperf',))['aiperf']}"
    tell(f"{host()} {versions(('headrace', 'xllamacpp'))} Client: {client}.")
    with scratch() as folder:
        aiperf = Aiperf(python, folder)
        for streams in map(int, given.streams.split(",")):
            load = {"streams": streams, "answers": given.answers, "rounds": given.rounds}
            pairs = asyncio.run(measure(aiperf, **load, together=given.together))
            at_once = "One stream" if streams == 1 else f"{streams} streams"
            how = "both at the same time" if given.together else "in turns"
            tell(f"\n{at_once} each, {how}, {given.rounds} rounds of {given.answers} answers:\n\n{table(pairs)}")
    if given.write:
        tell.write("pass-through")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--streams", default="1,8", help="how many at once, one measure for each number")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--answers", type=int, default=16, help="of each side in each round")
    parser.add_argument("--together", action="store_true", help="both at the same time instead of in turns")
    parser.add_argument("--write", action="store_true", help="put what is told into bench/RESULTS.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())
