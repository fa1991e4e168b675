"""The documents as passages, and the code in them."""

import re

import pytest

from headrace.demo.documents import documents_dir, language, load_pages, load_passages, passages_of

PAGES = load_pages(documents_dir())
PYTHON = [
    pytest.param(code, id=f"{page}-{number}")
    for page, text in PAGES.items()
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
]


def test_a_passage_s_span_is_its_place_in_the_file() -> None:
    for passage in load_passages(documents_dir()):
        assert PAGES[passage.page][passage.start : passage.end] == passage.text


def test_headings_code_and_tables_are_no_passages() -> None:
    page = "# Title\n\nOne.\n\n## Part\n\n```\n# code\nx = 1\n```\n\n| a |\n|---|\n\nTwo.\n"
    found = [(p.title, p.heading, p.text) for p in passages_of("p.md", page)]
    assert found == [("Title", "", "One."), ("Title", "Part", "Two.")]


def test_every_passage_is_one_whole_sentence_and_stands_once() -> None:
    passages = load_passages(documents_dir())
    assert [p.text for p in passages if not re.search(r"[.:。：?？]$", p.text)] == []
    texts = [p.text for p in passages]
    assert sorted({text for text in texts if texts.count(text) > 1}) == []


@pytest.mark.parametrize("code", PYTHON)
def test_python_in_the_documents_runs_as_far_as_it_needs_no_server(code: str) -> None:
    imports = "\n".join(re.findall(r"^from .* import .*$", code, re.MULTILINE))
    compile(code, "document", "exec")
    exec(imports if "Client(" in code or "OpenAI(" in code else code, {"__name__": "document"})


def test_a_question_is_chinese_when_it_is_written_in_chinese() -> None:
    assert language("Headrace 是什么？") == "zh"
    assert language("What does 你 mean in this document?") == "en"
