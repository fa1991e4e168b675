"""Finding passages: ranking, what is remembered on disk, and when the documents have no answer."""

from pathlib import Path

from bag_of_words import BagOfWords
from harness import run_async
from headrace.demo.documents import passages_of
from headrace.demo.index import open_index
from headrace.demo.library import Library
from headrace.demo.terms import Bm25, names, terms

PAGE = """# Tools

A tool has a timeout of thirty seconds.
A node starts when its needs are met.
The lock belongs to one process.
"""
PASSAGES = passages_of("tools.md", PAGE)
CHINESE = passages_of("zh/tools.md", "# 工具\n\n工具的默认超时是三十秒。\n")


def test_the_passage_that_shares_the_question_s_words_comes_first(tmp_path: Path) -> None:
    found = open_index(PASSAGES, BagOfWords(), tmp_path).search("Which timeout has a tool?")
    assert found.hits[0].passage.text == "A tool has a timeout of thirty seconds."
    assert found.margin > 0


def test_a_chinese_question_finds_chinese_pages_only(tmp_path: Path) -> None:
    index = open_index([*PASSAGES, *CHINESE], BagOfWords(), tmp_path)
    assert {hit.passage.lang for hit in index.search("工具的超时是多少？").hits} == {"zh"}
    assert {hit.passage.lang for hit in index.search("timeout of a tool").hits} == {"en"}


def test_a_question_without_common_words_is_not_relevant(tmp_path: Path) -> None:
    assert not open_index(PASSAGES, BagOfWords(), tmp_path).search("Who painted the Mona Lisa?").relevant


def test_a_name_that_no_document_has_lowers_the_relevance(tmp_path: Path) -> None:
    index = open_index(PASSAGES, BagOfWords(), tmp_path)
    assert index.search("tool timeout in Kafka").relevance < index.search("tool timeout in kafka").relevance


def test_only_what_is_new_is_embedded_again(tmp_path: Path) -> None:
    embedder = BagOfWords()
    open_index(PASSAGES, embedder, tmp_path)
    open_index(PASSAGES, embedder, tmp_path)
    assert embedder.embedded == len(PASSAGES)
    changed = passages_of("tools.md", "A new sentence.\n" + PAGE.replace("thirty", "forty"))
    told: list[tuple[int, int]] = []
    found = open_index(changed, embedder, tmp_path, lambda *seen: told.append(seen)).search("timeout of forty seconds")
    assert found.hits[0].passage.text == "A tool has a timeout of forty seconds."
    assert embedder.embedded == len(PASSAGES) + 2
    assert (told[0], told[-1]) == ((2, 4), (4, 4))


def test_two_folders_of_documents_keep_each_other_s_vectors(tmp_path: Path) -> None:
    embedder = BagOfWords()
    for passages in (PASSAGES, CHINESE, PASSAGES, CHINESE):
        open_index(passages, embedder, tmp_path)
    assert embedder.embedded == len(PASSAGES) + len(CHINESE)


def test_a_damaged_or_unwritable_cache_is_built_anew(tmp_path: Path) -> None:
    embedder = BagOfWords()
    open_index(PASSAGES, embedder, tmp_path)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    for damaged in (whole[:50], whole[:-200], b"", b"nonsense", whole[:400] + bytes(200) + whole[600:]):
        file.write_bytes(damaged)
        assert open_index(PASSAGES, embedder, tmp_path).search("timeout").hits
    assert embedder.embedded > len(PASSAGES)
    (tmp_path / "file").write_text("")
    assert open_index(PASSAGES, embedder, tmp_path / "file" / "below").search("timeout").hits


def test_progress_ends_with_every_passage_done(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    (tmp_path / "p.md").write_text(PAGE)

    async def opened() -> None:
        library = Library(documents=tmp_path, cache=tmp_path / "cache", embedder=BagOfWords)
        await library.open(lambda done, total: told.append((done, total)))

    run_async(opened())
    assert told[0] == (0, 3)
    assert told[-1] == (3, 3)


def test_terms_are_stems_without_stop_words_and_pairs_of_chinese_characters() -> None:
    assert terms("The tools are retried") == ["tool", "retri"]
    assert terms("默认超时") == ["默认", "认超", "超时"]
    assert names("Does Headrace know Kafka?") == {"headrac", "kafka"}


def test_a_rare_word_weighs_more_than_a_common_one() -> None:
    words = Bm25(["the run log", "the run queue", "the run page"])
    assert words.scores("run log")[0] > words.scores("run log")[1] > 0
    assert words.covered("log", [0]) == 1.0
    assert words.covered("log kafka", [0]) < 1.0
