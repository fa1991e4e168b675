"""Token ids become text, wherever a character is cut."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.answer.detokenise import Detokeniser, pieces_by_id, without_sentencepiece

BYTES = [bytes([value]) for value in range(256)]
"""The smallest vocabulary that can say everything: a token for each byte."""

FAMILY = "👩‍👩‍👧‍👦"


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    """The bytes, cut at these places (taken modulo the length)."""
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(places)]


def said(pieces: list[bytes]) -> list[str]:
    """What comes out for each token, and at the end."""
    detokeniser = Detokeniser(pieces)
    return [*(detokeniser.feed([token]) for token in range(len(pieces))), detokeniser.end()]


@given(st.text(max_size=40), st.lists(st.integers(0, 200), max_size=40))
def test_a_text_cut_anywhere_comes_out_as_it_was(text: str, cuts: list[int]) -> None:
    assert "".join(said(pieces_of(text.encode(), cuts))) == text


@given(st.text(max_size=20))
def test_no_piece_holds_part_of_a_character_even_byte_by_byte(text: str) -> None:
    assert [piece for piece in said([bytes([byte]) for byte in text.encode()]) if piece] == list(text)


@given(st.binary(max_size=40), st.lists(st.integers(0, 40), max_size=20))
def test_bytes_that_are_no_text_are_replaced_and_never_lost_or_raised(data: bytes, cuts: list[int]) -> None:
    assert "".join(said(pieces_of(data, cuts))) == data.decode("utf-8", "replace")


@given(st.text(min_size=1, max_size=12), st.lists(st.integers(0, 60), max_size=12))
def test_what_was_said_is_whole_tokens_at_every_cut(text: str, cuts: list[int]) -> None:
    """So that an answer can go on from there, and says what it would have said."""
    pieces = pieces_of(text.encode(), cuts)
    shown = ""
    ends = {b"".join(pieces[: count + 1]) for count in range(len(pieces))} | {b""}
    for piece in said(pieces):
        shown += piece
        assert shown.encode() in ends


@given(st.lists(st.integers(0, 255), max_size=60), st.integers(1, 60))
def test_it_does_not_matter_how_many_tokens_come_at_once(ids: list[int], size: int) -> None:
    at_once, one_by_one = Detokeniser(BYTES), Detokeniser(BYTES)
    batches = [ids[start : start + size] for start in range(0, len(ids), size)]
    together = "".join(at_once.feed(batch) for batch in batches) + at_once.end()
    assert together == "".join(one_by_one.feed([token]) for token in ids) + one_by_one.end()


def test_a_family_comes_one_person_at_a_time_and_an_accent_after_its_letter() -> None:
    assert said([FAMILY[:1].encode(), FAMILY[1:].encode()]) == [FAMILY[:1], FAMILY[1:], ""]
    assert said([b"e", "\u0301".encode()]) == ["e", "\u0301", ""]


def test_half_a_character_at_the_end_is_replaced() -> None:
    assert said(["帮".encode()[:2]]) == ["", "\ufffd"]


def test_tokens_that_never_make_a_character_are_not_held_for_ever() -> None:
    """Each begins a character that the next one breaks off."""
    shown = said([b"\xf0"] + [b"x\xf0"] * 20)
    assert any(shown[:10])
    assert "".join(shown) == "".join(["\ufffdx"] * 20) + "\ufffd"


def test_a_token_that_nobody_knows_or_that_is_silent_says_nothing() -> None:
    pieces = pieces_by_id({b"<end>": 0, b"a": 2}, silent={0})
    assert pieces == [b"", b"", b"a"]
    assert Detokeniser(pieces).feed([2, 0, 1, 7, -1, 2]) == "aa"


def test_a_vocabulary_without_tokens_has_no_pieces() -> None:
    assert pieces_by_id({}) == []


def test_sentencepiece_writes_spaces_and_bytes_in_its_own_way() -> None:
    pieces = without_sentencepiece(
        ["▁Hello".encode(), "▁▁".encode(), b"<0xE5>", b"<0xb8>", b"<0xAE>", b"<0xZZ>", b"<s>"]
    )
    assert pieces == [b" Hello", b"  ", b"\xe5", b"\xb8", b"\xae", b"<0xZZ>", b"<s>"]
    assert Detokeniser(pieces).feed(range(5)) == " Hello  帮"
