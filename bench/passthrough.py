"""What Headrace adds to its embedded engine, measured by somebody else's client: aiperf, in an environment of its own.

`python -m bench.passthrough`, a quarter of an hour. One and the same llama.cpp process is asked by aiperf directly,
through Headrace's Chat Completions, and directly again; the prompts are always new, and answers have 48 tokens by its
own count. What comes through Headrace is compared with the mean of the two others, one of them before it and one after.
How far these are apart is told beside it: a difference that is no greater says nothing.

Client, Headrace and model share all cores of the machine. Left to itself, aiperf takes one of them: to hold a number of
requests in flight, its timing manager asks without a pause whether the next may be sent (aiperf 0.13,
`timing/strategies/request_rate.py`, an interval of 0). On two cores, what Headrace does could then only be taken from
the model. Asked to send at most `PACE` requests per second too, it sleeps in between; so many are never answered, so
that nothing else changes but that up to 10 ms pass before a request is sent, the same for both and in no latency.
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
from bench.process import all_cores, say, scratch
from bench.report import host, versions
from bench.rivals import ROOT, environment_of, package_versions
from bench.telling import Telling
from headrace.engine.cores import model_threads, usable_cores

sys.path.append(str(ROOT / "tests"))

from tiny_model import learning_text, make_tiny_model

COMMAND = "python -m bench.passthrough"
AIPERF = ("aiperf==0.13.*",)
PROMPT_TOKENS = 64
"""As the tokenizer made here counts them; the model makes fewer of them."""
PACE = 100
"""Requests per second at most, far beyond what the engine answers."""

_WITHIN_S = 600.0
_LATENCY = "time_to_first_token", "inter_token_latency", "inter_chunk_latency", "request_latency"
WANTED = {
    "first token, ms, p50": ("time_to_first_token", "p50"),
    "first token, ms, p90": ("time_to_first_token", "p90"),
    "between two tokens, mean of an answer, ms, p50": ("inter_token_latency", "p50"),
    "between two pieces, ms, p50": ("inter_chunk_latency", "p50"),
    "between two pieces, ms, p99": ("inter_chunk_latency", "p99"),
    "whole answer, ms, p50": ("request_latency", "p50"),
    "whole answer, ms, p90": ("request_latency", "p90"),
    "answers per second": ("request_throughput", "avg"),
    "tokens of a prompt": ("input_sequence_length", "avg"),
    "tokens of an answer": ("output_sequence_length", "avg"),
}
"""What is told, by aiperf's name and statistic. The last two show that both were asked for the same."""


class Target(msgspec.Struct, frozen=True):
    name: str
    url: str
    key: str | None = None


class AiperfFailed(RuntimeError):
    """It measured nothing, or not all; the message has what it said."""


Report = dict[str, float]
"""What was wanted, by its name here."""

Round = tuple[Report, Report, Report]
"""The engine itself, Headrace, and the engine itself again."""


def read_report(body: bytes, *, answers: int) -> Report:
    """aiperf's `profile_export_aiperf.json`. Raises AiperfFailed if it does not tell of `answers` good ones."""
    report = msgspec.json.decode(body)
    counted = report.get("request_count", {}).get("avg", 0)
    if counted != answers:
        raise AiperfFailed(f"{counted:g} of {answers} answers were good: {report.get('error_summary')}")
    for name in _LATENCY:
        if report[name]["unit"] != "ms":
            raise AiperfFailed(f"{name} is in {report[name]['unit']}, not in ms")
    return {text: report[name][statistic] for text, (name, statistic) in WANTED.items()}


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
            "--request-rate": PACE,
            "--request-rate-mode": "constant",
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


async def measure(aiperf: Aiperf, *, streams: int, answers: int, rounds: int) -> list[Round]:
    async with one_engine() as (server, process):
        direct = Target("the engine itself", process.url, process.api_key)
        headrace = Target("through Headrace", f"http://127.0.0.1:{server.port}")

        async def take(target: Target) -> Report:
            return await aiperf.profile(target, streams=streams, answers=answers)

        taken: list[Round] = []
        for turn in range(rounds):
            taken.append((await take(direct), await take(headrace), await take(direct)))
            say(f"{streams} streams, round {turn + 1} of {rounds}\n{table(taken[-1:])}")
    return taken


def table(rounds: list[Round]) -> str:
    """Medians over the rounds; a ratio is made within a round, of Headrace over the mean of the two others."""
    lines = [
        "| | the engine itself | through Headrace | ratio [rounds] | the engine again over itself [rounds] |",
        "|---|---|---|---|---|",
    ]
    for text in WANTED:
        before, ours, after = ([one[at][text] for one in rounds] for at in range(3))
        bare = [(first + again) / 2 for first, again in zip(before, after, strict=True)]
        ratio = _ratios(ours, bare)
        noise = _ratios(after, before)
        lines.append(f"| {text} | {median(bare):.4g} | {median(ours):.4g} | {ratio} | {noise} |")
    return "\n".join(lines)


def _ratios(ones: list[float], others: list[float]) -> str:
    ratios = [one / other for one, other in zip(ones, others, strict=True)]
    return f"{median(ratios):.3f} [{min(ratios):.3f}-{max(ratios):.3f}]"


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
            rounds = asyncio.run(measure(aiperf, streams=streams, answers=given.answers, rounds=given.rounds))
            at_once = "One stream" if streams == 1 else f"{streams} streams"
            tell(f"\n{at_once}, {given.rounds} rounds of three times {given.answers} answers:\n\n{table(rounds)}")
    cores = len(all_cores())
    tell(f"\naiperf, Headrace and the model with its {model_threads(usable_cores())} threads share {cores} cores.")
    if given.write:
        tell.write("pass-through")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--streams", default="1,8", help="how many at once, one measure for each number")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--answers", type=int, default=32, help="each of the three times in each round")
    parser.add_argument("--write", action="store_true", help="put what is told into bench/RESULTS.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())
