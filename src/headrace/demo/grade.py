"""The questions by which the demo is judged, and the judge.

An answer is right when every fact that was asked for is in it and a page that holds the fact is cited. A question
that the documents don't answer is right when the answer says so and cites nothing. The judge is deterministic and
knows nothing of how an answer was made. `holdout` questions are for the last run only, never for tuning;
`paraphrase` marks those worded without looking at the documents.
"""

import re
from collections.abc import Collection, Iterable
from importlib.resources import files
from typing import Literal

import msgspec

NOT_IN_DOCUMENTS = {"en": "That is not in the documents.", "zh": "文档里没有这个答案。"}

_MAX_CITED = 3
"""Citing everything would always cite the right page."""


class Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`must` are regular expressions that all have to be found; none means the documents don't answer it."""

    id: str
    question: str
    lang: Literal["en", "zh"] = "en"
    must: tuple[str, ...] = ()
    pages: tuple[str, ...] = ()
    paraphrase: bool = False
    holdout: bool = False

    @property
    def answerable(self) -> bool:
        return bool(self.must)

    @property
    def group(self) -> str:
        if self.lang == "zh":
            return "chinese" if self.answerable else "chinese unanswerable"
        if not self.answerable:
            return "unanswerable"
        return "paraphrase" if self.paraphrase else "plain"


class Grade(msgspec.Struct, frozen=True, kw_only=True):
    """`why` is empty when the answer is right."""

    right: bool
    why: str = ""


def load_questions() -> list[Question]:
    """Every question, in file order."""
    lines = files("headrace.demo").joinpath("questions.jsonl").read_text("utf-8").splitlines()
    return [msgspec.json.decode(line, type=Question) for line in lines if line.strip()]


def grade(question: Question, answer: str, cited: Collection[str]) -> Grade:
    """Judge one answer. `cited` are the pages it cites, as paths below the documents' folder."""
    faults = _faults(question, answer, cited) if question.answerable else _faults_of_refusal(question, answer, cited)
    return Grade(right=not (why := "; ".join(faults)), why=why)


def _faults(question: Question, answer: str, cited: Collection[str]) -> Iterable[str]:
    for fact in question.must:
        if not re.search(fact, answer, re.IGNORECASE):
            yield f"lacks /{fact}/"
    if not set(question.pages) & set(cited):
        yield f"cites {sorted(cited)}, not one of {list(question.pages)}"
    if len(set(cited)) > _MAX_CITED:
        yield f"cites {len(set(cited))} pages, more than {_MAX_CITED}"


def _faults_of_refusal(question: Question, answer: str, cited: Collection[str]) -> Iterable[str]:
    if NOT_IN_DOCUMENTS[question.lang].rstrip(".。") not in answer:
        yield "answers what the documents don't say"
    if cited:
        yield f"cites {sorted(cited)}"
