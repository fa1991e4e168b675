"""Server-sent events come out the same however the bytes were cut."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import PayloadTooLarge
from headrace.wire.sse import ServerSentEvent, SSEDecoder

STREAM = (
    ": a comment\n\n"
    "retry: 3000\n\n"
    'id: 7\nevent: text.delta\ndata: {"delta":"café 帮 😀"}\n\n'
    "data:no space\n\n"
    "data: two\ndata:\ndata:  lines\nignored: field\nid: 8\n\n"
    ":\n\n"
    "data\n\n"
    "data: [DONE]\n\n"
)
EVENTS = [
    ServerSentEvent("text.delta", '{"delta":"café 帮 😀"}', "7"),
    ServerSentEvent("message", "no space"),
    ServerSentEvent("message", "two\n\n lines", "8"),
    ServerSentEvent("message", ""),
    ServerSentEvent("message", "[DONE]"),
]


def decode(pieces: list[bytes]) -> list[ServerSentEvent]:
    decoder = SSEDecoder()
    return [event for piece in pieces for event in decoder.feed(piece)]


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_one_byte_at_a_time_gives_every_event(line_end: str) -> None:
    stream = STREAM.replace("\n", line_end).encode()
    assert decode([stream]) == EVENTS
    assert decode([stream[i : i + 1] for i in range(len(stream))]) == EVENTS


@given(cuts=st.lists(st.integers(0, 300)), line_ends=st.lists(st.sampled_from(["\n", "\r\n", "\r"]), min_size=40))
def test_any_cut_and_any_mix_of_line_ends_gives_the_same_events(cuts: list[int], line_ends: list[str]) -> None:
    lines = STREAM.split("\n")
    stream = "".join(line + end for line, end in zip(lines[:-1], line_ends, strict=False)).encode()
    edges = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    whole = decode([stream])
    assert decode([stream[a:b] for a, b in itertools.pairwise(edges)]) == whole
    # A CR that stands alone right before a line of only LF reads as one CRLF; everything else is as sent.
    if "\r" not in line_ends:
        assert whole == EVENTS


def test_a_byte_order_mark_is_skipped_even_when_cut() -> None:
    stream = b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n"
    assert decode([stream[i : i + 1] for i in range(len(stream))]) == [ServerSentEvent("message", "a")]


def test_retry_and_id_without_data_are_remembered_and_are_no_event() -> None:
    decoder = SSEDecoder()
    assert decoder.feed(b"retry: 3000\nid: 12\n\nretry: soon\nid: a\0b\n\n") == []
    assert (decoder.retry, decoder.last_id) == (3000, "12")


def test_a_torn_event_is_not_delivered_unless_asked_for() -> None:
    decoder = SSEDecoder()
    assert decoder.feed(b"data: whole\n\ndata: torn") == [ServerSentEvent("message", "whole")]
    assert decoder.flush() == [ServerSentEvent("message", "torn")]
    assert decoder.flush() == []


def test_a_line_of_many_megabytes_passes() -> None:
    big = b"x" * 65536
    decoder = SSEDecoder()
    assert decoder.feed(b"data: ") == []
    for _ in range(160):
        assert decoder.feed(big) == []
    assert len(decoder.feed(b"\n\n")[0].data) == 160 * 65536


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_an_event_over_the_limit_is_refused_and_one_at_the_limit_is_not(piece: int) -> None:
    def pieces(stream: bytes) -> list[bytes]:
        return [stream[i : i + piece] for i in range(0, len(stream), piece)]

    fitting = b"data: 1234\n\n" * 50
    decoder = SSEDecoder(max_event_bytes=10)
    assert len([e for p in pieces(fitting) for e in decoder.feed(p)]) == 50
    with pytest.raises(PayloadTooLarge):
        [decoder.feed(part) for part in pieces(b"data: 12\ndata: 3\n\n")]
