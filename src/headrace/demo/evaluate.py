"""How good the demo's answers are, and how fast: `python -m headrace.demo.evaluate`.

    --model NAME           the embedded model for English (smollm2) ...
    --chinese-model NAME   ... and for Chinese questions (gemma; none skips them)
    --engine-url URL       ask this server instead, with OPENAI_API_KEY
    --holdout              ask the held-out questions too: for a last evaluation, never while tuning
    --only TEXT            ask only the questions whose id begins with this
    --json PATH            write every answer there

Every question goes through the real agent and the real engine, one at a time; the judge is `grade.py`.
"""

import argparse
import asyncio
import contextlib
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

import msgspec

from headrace.agent.port import RunContext
from headrace.demo.agent import DocsAgent
from headrace.demo.grade import Grade, Question, grade, load_questions
from headrace.engine.llamacpp.engine import LlamaCppEngine
from headrace.engine.models import install, model
from headrace.engine.openai.engine import OpenAIEngine
from headrace.engine.port import Engine
from headrace.errors import HeadraceError
from headrace.events import Event, Record, RunStarted, SourceCited, TextDelta
from headrace.messages import Message
from headrace.state import apply, initial


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """`first_ms` is until the first text, None when none came. `failed` is the error's code."""

    question: Question
    text: str
    cited: tuple[str, ...]
    grade: Grade
    first_ms: float | None
    total_ms: float
    failed: str | None = None


class _Recorder:
    """An Emit that keeps what happens and when the first text came."""

    def __init__(self) -> None:
        self.seq = 1
        self.events: list[Event] = []
        self.first: float | None = None

    def emit(self, event: Event) -> None:
        self.seq += 1
        self.events.append(event)
        if self.first is None and isinstance(event, TextDelta):
            self.first = time.perf_counter()

    async def commit(self, *events: Event) -> None:
        for event in events:
            self.emit(event)


async def ask(agent: DocsAgent, engine: Engine, question: Question) -> Answer:
    """One run of the agent, judged."""
    asked = (Message(role="user", content=question.question),)
    started = RunStarted(agent=agent.name, thread_id=f"t-{question.id}", input=asked)
    state = apply(initial(f"r-{question.id}"), Record(run_id=f"r-{question.id}", seq=1, ts=0, event=started))
    out = _Recorder()
    context = RunContext(state=state, history=(), out=out, engine=engine)
    began = time.perf_counter()
    text, failed = "", None
    try:
        text = (await agent.run(context)).output
    except HeadraceError as error:
        failed = error.code
    cited = tuple(dict.fromkeys(e.path for e in out.events if isinstance(e, SourceCited) and e.path))
    return Answer(
        question=question,
        text=text,
        cited=cited,
        grade=grade(question, text, cited),
        first_ms=None if out.first is None else (out.first - began) * 1000,
        total_ms=(time.perf_counter() - began) * 1000,
        failed=failed,
    )


async def evaluate(agent: DocsAgent, engine: Engine, questions: Iterable[Question]) -> list[Answer]:
    """Every question in order, after one that warms the engine's prefix cache."""
    await ask(agent, engine, Question(id="warm", question="Hello"))
    answers = []
    for question in questions:
        answer = await ask(agent, engine, question)
        answers.append(answer)
        mark = "ok" if answer.grade.right else "NO"
        why = "" if answer.grade.right else f"  [{answer.failed or answer.grade.why}]"
        print(
            f"{mark}  {question.id:8} {question.question}\n      {answer.text}  {list(answer.cited)}{why}", flush=True
        )
    return answers


def summary(answers: Sequence[Answer]) -> str:
    """Rights of all in each group, and the times."""
    lines = [""]
    groups = sorted({answer.question.group for answer in answers})
    for name in groups:
        lines += _line(name, [a for a in answers if a.question.group == name])
    thirty = [a for a in answers if a.question.lang == "en" and a.question.answerable]
    lines += _line("about Headrace, in English", thirty)
    lines += _line("held out", [a for a in answers if a.question.holdout])
    lines += _line("not held out", [a for a in answers if not a.question.holdout])
    firsts = [a.first_ms for a in answers if a.first_ms is not None]
    lines.append(f"first text     p50 {_at(firsts, 0.5):6.0f} ms   p95 {_at(firsts, 0.95):6.0f} ms")
    totals = [a.total_ms for a in answers]
    lines.append(f"whole answer   p50 {_at(totals, 0.5):6.0f} ms   p95 {_at(totals, 0.95):6.0f} ms")
    return "\n".join(lines)


def _line(name: str, answers: Sequence[Answer]) -> list[str]:
    right = sum(answer.grade.right for answer in answers)
    return [f"{name:28} {right:3} of {len(answers)}"] if answers else []


def _at(values: Sequence[float], part: float) -> float:
    if len(values) < 2:
        return values[0] if values else 0.0
    return statistics.quantiles(values, n=100, method="inclusive")[round(part * 100) - 1]


@contextlib.asynccontextmanager
async def embedded(name: str) -> AsyncIterator[Engine]:
    """The embedded engine with this model, which is fetched when it is not there."""
    path = await asyncio.to_thread(install, name)
    async with LlamaCppEngine(path, model=name, base=model(name).base) as engine:
        yield engine


async def _main(arguments: argparse.Namespace) -> int:
    agent = DocsAgent()
    await agent.prepare(lambda what, done, total: print(f"\r{what}: {done}/{total}", end="", file=sys.stderr))
    print(file=sys.stderr)
    wanted = [q for q in load_questions() if (arguments.holdout or not q.holdout) and q.id.startswith(arguments.only)]
    answers = []
    for lang, name in (("en", arguments.model), ("zh", arguments.chinese_model)):
        questions = [q for q in wanted if q.lang == lang]
        if questions and name != "none":
            async with _engine(arguments.engine_url, name) as engine:
                answers += await evaluate(agent, engine, questions)
    print(summary(answers))
    if arguments.json:
        await asyncio.to_thread(arguments.json.write_bytes, msgspec.json.format(msgspec.json.encode(answers)))
    return 0


def _engine(url: str | None, name: str) -> contextlib.AbstractAsyncContextManager[Engine]:
    if url is None:
        return embedded(name)
    return OpenAIEngine(url, model=name, api_key=os.environ.get("OPENAI_API_KEY"))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m headrace.demo.evaluate", description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--chinese-model", default="gemma")
    parser.add_argument("--engine-url")
    parser.add_argument("--holdout", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    return asyncio.run(_main(parser.parse_args(argv)))


if __name__ == "__main__":
    sys.exit(main())
