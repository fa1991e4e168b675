"""Rules that choose a tool must be sure: a question about Headrace never becomes arithmetic or the time."""

from pathlib import Path

import msgspec
import pytest

from headrace.demo.grade import Question, load_questions
from headrace.demo.intent import intent_of

_CALIBRATION = Path(__file__).with_name("calibration.jsonl").read_text("utf-8").splitlines()


@pytest.mark.parametrize(
    ("question", "expression"),
    [
        ("What is 6 * 7?", "6 * 7"),
        ("what's 12 plus 30", "12 + 30"),
        ("calculate (3 + 4) * 2 ** 10", "(3 + 4) * 2 ** 10"),
        ("How much is 15% of 80?", "15/100* 80"),
        ("what is the square root of 144?", "sqrt(144)"),
        ("1,000 + 1 =", "1000 + 1"),
        ("3加5等于多少？", "3+5"),
        ("计算 7 × 8", "7 * 8"),
        ("What is 1 / 0?", "1 / 0"),
    ],
)
def test_arithmetic_goes_to_the_calculator(question: str, expression: str) -> None:
    intent = intent_of(question)
    assert (intent.kind, intent.expression) == ("calculator", expression)


@pytest.mark.parametrize(
    ("question", "zone"),
    [
        ("What time is it?", "UTC"),
        ("what's the time in Berlin?", "Europe/Berlin"),
        ("What time is it in New York", "America/New_York"),
        ("What is the date today?", "UTC"),
        ("what day is it", "UTC"),
        ("Tell me the current time", "UTC"),
        ("现在几点了？", "UTC"),
        ("东京现在几点？", "Asia/Tokyo"),
        ("今天星期几？", "UTC"),
    ],
)
def test_the_time_goes_to_the_clock(question: str, zone: str) -> None:
    intent = intent_of(question)
    assert (intent.kind, intent.zone) == ("clock", zone)


@pytest.mark.parametrize("question", ["Hi!", "hello there", "Thank you!", "你好"])
def test_a_greeting_is_a_greeting(question: str) -> None:
    assert intent_of(question).kind == "greeting"


@pytest.mark.parametrize(
    "question",
    [
        "What time zone does Tokyo use?",
        "What is 24 hours retention?",
        "What does 204 mean?",
        "What is the first token time?",
        "2026-11-29",
        "What is the timeout?",
        "Hello, how do I start the demo?",
        "运行需要多长时间？",
        "",
    ],
)
def test_everything_else_goes_to_the_documents(question: str) -> None:
    assert intent_of(question).kind == "documents"


def test_no_question_of_the_evaluation_is_taken_for_a_tool_s() -> None:
    questions = load_questions() + [msgspec.json.decode(line, type=Question) for line in _CALIBRATION]
    assert [q.question for q in questions if intent_of(q.question).kind != "documents"] == []
