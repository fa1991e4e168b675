"""The promise of the demo, kept with the real model and the real embedder."""

import sys

import pytest

from harness import run_async
from headrace.demo.agent import DocsAgent
from headrace.demo.evaluate import Answer, embedded, evaluate, summary
from headrace.demo.grade import load_questions
from headrace.demo.library import Library

pytestmark = [pytest.mark.model, pytest.mark.slow]


async def _evaluated(lang: str, model: str) -> list[Answer]:
    agent = DocsAgent(library=Library(), retrieval_deadline=30.0)
    await agent.prepare(lambda what, done, total: None)
    async with embedded(model) as engine:
        return await evaluate(agent, engine, [q for q in load_questions() if q.lang == lang])


def test_twenty_four_of_thirty_are_right_and_cited_and_what_has_no_answer_is_refused() -> None:
    answers = run_async(_evaluated("en", "smollm2"), deadline=600)
    print(summary(answers), file=sys.stderr)
    asked = [a for a in answers if a.question.answerable]
    refused = [a for a in answers if not a.question.answerable]
    wrong = [a.question.id for a in asked if not a.grade.right]
    for paraphrased_by in ("para", "outs"):  # by ourselves, and by somebody who has not seen the documents
        thirty = [a for a in asked if a.question.id.startswith(("plain", paraphrased_by))]
        assert len(thirty) == 30
        assert sum(a.grade.right for a in thirty) >= 24, wrong
    assert sum(a.grade.right for a in refused) >= len(refused) - 1, [a.question.id for a in refused]
    assert [a.failed for a in answers if a.failed] == []
