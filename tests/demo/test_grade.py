"""The judge of the demo's answers, judged."""

from pathlib import Path

from headrace.demo.grade import Question, grade, load_questions

DOCS = Path(__file__).parents[2] / "docs"
ASKED = Question(id="q", question="How long?", must=("24 hours", "frames"), pages=("log.md",))
UNKNOWN = Question(id="u", question="Who?")


def test_an_answer_with_every_fact_and_an_accepted_page_is_right() -> None:
    assert grade(ASKED, "The FRAMES are kept for 24 hours.", ["log.md"]).right


def test_an_answer_that_lacks_one_fact_is_wrong() -> None:
    assert not grade(ASKED, "Kept for 24 hours.", ["log.md"]).right


def test_a_right_answer_that_cites_nothing_or_another_page_is_wrong() -> None:
    assert not grade(ASKED, "The frames are kept for 24 hours.", []).right
    assert not grade(ASKED, "The frames are kept for 24 hours.", ["faq.md"]).right


def test_citing_every_page_does_not_make_an_answer_right() -> None:
    assert not grade(ASKED, "The frames are kept for 24 hours.", ["log.md", "a.md", "b.md", "c.md"]).right


def test_a_question_outside_the_documents_is_right_only_when_refused_without_a_citation() -> None:
    assert grade(UNKNOWN, "That is not in the documents.", []).right
    assert not grade(UNKNOWN, "Headrace does.", []).right
    assert not grade(UNKNOWN, "That is not in the documents.", ["faq.md"]).right


def test_there_are_thirty_questions_ten_of_them_paraphrased_and_half_held_out() -> None:
    thirty = [q for q in load_questions() if q.lang == "en" and q.answerable and not q.id.startswith("outs")]
    assert len(thirty) == 30
    assert sum(q.paraphrase for q in thirty) == 10
    assert sum(q.holdout for q in thirty) == 15


def test_every_expected_page_exists_and_holds_the_expected_facts() -> None:
    for question in load_questions():
        pages = [(DOCS / page).read_text("utf-8") for page in question.pages]
        assert all(pages) or not question.answerable, question.id
        if question.answerable:
            assert any(grade(question, page, question.pages).right for page in pages), question.id
