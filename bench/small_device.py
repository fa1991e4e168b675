"""The demo on a small device, one core and 1 GiB: does it answer, how soon, how well, and what memory does it take?

`python -m bench.small_device`, a minute; Linux. It is the demo with its default settings and the embedded model; where
the cache has no index of the documents, it is made before the server listens, as at a stranger's first start. The exit
code is 1 if a question is not answered or the processes together needed more than the limit.
"""

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import msgspec

from bench.contestants import Contestant, serving
from bench.memory_limit import Limit, memory_limit
from bench.process import ServerFailed, children, pss_kb, scratch
from bench.report import host, versions
from bench.telling import Telling
from headrace.demo.grade import Grade, Question, grade, load_questions
from headrace.engine import models
from headrace.engine.llamacpp.parameters import read_address
from headrace.wire.sse import SSEDecoder

COMMAND = "python -m bench.small_device"

_EVERY = 0.1  # seconds between two looks at the memory
_ANSWERS_WITHIN = 120.0
_STARTS_WITHIN = 600.0  # the first start builds the index of the documents


class Answer(msgspec.Struct):
    """Seconds until the first text and until the end. Without `output` it is no answer, and `fault` says why."""

    first: float = 0.0
    total: float = 0.0
    output: str = ""
    cited: tuple[str, ...] = ()
    fault: str = "the stream ended before the run"


class Memory(msgspec.Struct):
    """MiB: `together` is the most that the processes had at one time, memory that they share counted once (PSS);
    `each` is the peak of every process, by name and pid (VmHWM)."""

    together: float = 0.0
    each: dict[str, int] = {}


async def ask(http: aiohttp.ClientSession, url: str, question: str) -> Answer:
    answer, decoder, begun = Answer(), SSEDecoder(), time.perf_counter()
    try:
        async with http.post(url, json={"input": question}, headers={"accept": "text/event-stream"}) as response:
            response.raise_for_status()
            async for piece in response.content.iter_any():
                for frame in decoder.feed(piece):
                    _hear(answer, frame.event, msgspec.json.decode(frame.data), time.perf_counter() - begun)
    except (aiohttp.ClientError, TimeoutError) as exc:
        answer.fault = f"{type(exc).__name__}: {exc}"
    return answer


def _hear(answer: Answer, event: str, data: dict[str, str], now: float) -> None:
    answer.total = now
    if event == "text.delta":
        answer.first = answer.first or now
    elif event == "source.cited" and data.get("path"):
        answer.cited = tuple(dict.fromkeys((*answer.cited, data["path"])))
    elif event == "run.finished":
        answer.output, answer.fault = data.get("output", ""), f"ended with {data['status']} and without text"
    elif event == "run.error":
        answer.fault = f"{data['code']}: {data['message']}"


def questions(count: int) -> list[Question]:
    """The demo's own in English: three that the documents answer, one that they do not, and so on."""
    english = [question for question in load_questions() if question.lang == "en"]
    answered = iter([question for question in english if question.answerable])
    others = iter([question for question in english if not question.answerable])
    return [next(others if number % 4 == 3 else answered) for number in range(count)]


def demo(limit: Limit, cache: Path, slots: int | None) -> Contestant:
    settings = {
        "HEADRACE_SERVER__PORT": "{PORT}",
        "HEADRACE_LOG__PATH": "{DATA}/store",
        "HEADRACE_CACHE": str(cache),
    }
    if slots is not None:
        settings["HEADRACE_ENGINE__SLOTS"] = str(slots)
    command = (*limit.prefix, sys.executable, "-m", "headrace.cli", "serve")
    return Contestant(name="demo", command=command, settings=settings, ready_s=_STARTS_WITHIN)


@contextlib.contextmanager
def cache_of_our_own() -> Iterator[Path]:
    """What the real one has, but for the embedded processes: one that was started elsewhere would not be limited.

    The weights are a copy, as of those that other programs read too only a part would be counted.
    """
    weights = models.install("smollm2")
    real = weights.parents[1]
    (real / "index").mkdir(exist_ok=True)  # so that it is kept
    with scratch() as folder:
        (folder / "models").mkdir()
        shutil.copy2(weights, folder / "models")
        for entry in (*real.iterdir(), *weights.parent.iterdir()):
            if entry.name != "llamacpp" and not (place := folder / entry.relative_to(real)).exists():
                place.symlink_to(entry)
        yield folder


@contextlib.contextmanager
def watched(cache: Path) -> Iterator[Memory]:
    """The memory of everything that this process starts, looked at again and again."""
    memory, done = Memory(each={}), threading.Event()

    def watch() -> None:
        while not done.wait(_EVERY):
            pids = [*children(os.getpid())[1:], *_embedded(cache)]
            memory.together = max(memory.together, pss_kb(pids) / 1024)
            memory.each |= {name: peak for pid in pids for name, peak in _peak(pid)}

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield memory
    finally:
        done.set()
        watcher.join()


def _embedded(cache: Path) -> list[int]:
    """The model's process is nobody's child: it may outlive its server."""
    addresses = [read_address(place) for place in cache.glob("llamacpp/*")]
    return [address.pid for address in addresses if address is not None]


def _peak(pid: int) -> Iterator[tuple[str, int]]:
    with contextlib.suppress(OSError):
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        module = Path(f"/proc/{pid}/cmdline").read_bytes().decode().partition("-m\0")[2].partition("\0")[0]
        if "VmHWM" in status:  # not of a process that has ended
            yield f"{module or status['Name'].strip()} {pid}", int(status["VmHWM"].split()[0]) >> 10


async def answers(url: str, asked: list[Question], tell: Telling) -> list[tuple[Answer, Grade]]:
    """One after the other, each told as it comes."""
    took = []
    tell("| question | first text, s | whole answer, s | |\n|---|---|---|---|")
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ANSWERS_WITHIN)) as http:
        for question in asked:
            answer = await ask(http, url, question.question)
            judged = grade(question, answer.output, answer.cited)
            said = "right and cited" if judged.right and question.answerable else "rightly refused"
            verdict = f"not answered: {answer.fault}" if not answer.output else said if judged.right else judged.why
            tell(f"| {question.question} | {answer.first:.2f} | {answer.total:.2f} | {verdict} |")
            took.append((answer, judged))
    return took


def measure(limit: Limit, cache: Path, asked: list[Question], tell: Telling, *, slots: int | None, mib: int) -> int:
    """The exit code."""
    tell(f"{host()} {versions(('headrace', 'xllamacpp'))}\n\n{limit.text}.")
    begun = time.perf_counter()
    # The harness gives a server, and whatever it starts, the first core.
    with watched(cache) as memory, serving(demo(limit, cache, slots)) as server:
        cores = len(os.sched_getaffinity(server.pid))
        tell(f"{cores} core; it listened after {time.perf_counter() - begun:.1f} s.\n")
        took = asyncio.run(answers(f"http://127.0.0.1:{server.port}/v1/runs", asked, tell))
        kills = limit.kills
    unanswered = sum(not answer.output for answer, _ in took)
    tell(
        f"\n{len(took) - unanswered} of {len(took)} answered, {sum(judged.right for _, judged in took)} of them right."
    )
    _tell_memory(memory, kills, tell)
    return 1 if unanswered or kills or memory.together > mib else 0


def _tell_memory(memory: Memory, kills: int, tell: Telling) -> None:
    tell(f"Peak memory: {memory.together:.0f} MiB together (PSS, looked at every {_EVERY} s).\n")
    tell("| process | at most, MiB (VmHWM) |\n|---|---|")
    for name, peak in memory.each.items():
        tell(f"| `{name}` | {peak} |")
    if kills:
        tell(f"\nThe kernel ended {kills} processes because of the limit.")


def main() -> int:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--mib", type=int, default=1024, help="the limit")
    parser.add_argument("--slots", type=int, help="answers at once; the demo's default, if it is not given")
    parser.add_argument("--write", action="store_true", help="put what is told into bench/RESULTS.md")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that whoever was started is stopped
    asked = questions(given.questions)
    tell = Telling("small device: the demo on one core with 1 GiB", COMMAND)
    try:
        with cache_of_our_own() as cache, memory_limit(given.mib << 20) as limit:
            code = measure(limit, cache, asked, tell, slots=given.slots, mib=given.mib)
    except ServerFailed as exc:
        print(f"The demo does not start within {given.mib} MiB. {exc}", file=sys.stderr)
        return 1
    if given.write:
        tell.write("small device")
    return code


if __name__ == "__main__":
    sys.exit(main())
