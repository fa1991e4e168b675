from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import events as e
from headrace.errors import InvalidRequest
from headrace.wire.chunking import MAX_HOLD_S, Chunker, merge_adjacent, parse_policy
from headrace.wire.codec import decode_record, encode_record, frame_data, frame_seq, frame_type

TS = 1_764_424_800_000
POLICIES = ["tokens:3", "interval:40ms", "sentence", "entity"]
piece = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6) | st.sampled_from(
    ["Hi. ", "。", "```", "\n", "3.14", "https://a.b/c", "👩‍👩‍👧", '"', "\\", " "]
)
event = (
    piece.map(lambda text: e.TextDelta(text=text))
    | piece.map(lambda text: e.ThinkingDelta(text=text))
    | st.just(e.ToolProgress(call_id="c", data=1))
)


def frames_of(events: Sequence[e.Event]) -> list[bytes]:
    return [encode_record(seq, TS + seq, event) for seq, event in enumerate(events, 1)]


def texts(frames: Sequence[bytes]) -> list[tuple[str, str]]:
    """Adjacent deltas of one kind joined, everything else as it is: what a reader ends up with."""
    joined: list[tuple[str, str]] = []
    for frame in frames:
        kind = frame_type(frame)
        text = msgspec.json.decode(frame_data(frame)).get("text", "")
        if joined and joined[-1][0] == kind and kind.endswith(".delta"):
            joined[-1] = (kind, joined[-1][1] + text)
        else:
            joined.append((kind, text))
    return joined


def covered(frames: Sequence[bytes]) -> list[int]:
    """The seqs that frames cover, by their id and `n`."""
    seqs: list[int] = []
    for frame in frames:
        count = msgspec.json.decode(frame_data(frame)).get("n", 1)
        seqs += range(frame_seq(frame) - count + 1, frame_seq(frame) + 1)
    return seqs


@given(st.lists(event, max_size=40))
def test_merging_keeps_the_text_and_covers_every_seq_once(events: list[e.Event]) -> None:
    frames = frames_of(events)
    merged = merge_adjacent(frames)
    assert texts(merged) == texts(frames)
    assert covered(merged) == list(range(1, len(frames) + 1))
    for frame in merged:
        decode_record("r", frame)


@pytest.mark.parametrize("policy", POLICIES)
@given(data=st.data())
def test_a_policy_never_changes_the_text_however_it_is_fed(policy: str, data: st.DataObject) -> None:
    frames = frames_of(data.draw(st.lists(event, max_size=30)))
    chunker = parse_policy(policy)
    assert isinstance(chunker, Chunker)
    out: list[bytes] = []
    rest = list(frames)
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        out += chunker.feed(rest[:size], now=0.0)
        rest = rest[size:]
    out += chunker.flush()
    assert texts(out) == texts(frames)
    assert covered(out) == list(range(1, len(frames) + 1))


def test_a_sentence_is_sent_when_it_is_whole() -> None:
    chunker = parse_policy("sentence")
    assert chunker is not None
    first = chunker.feed(frames_of([e.TextDelta(text=t) for t in ["It ", "works", ". ", "And ", "so"]]), now=0.0)
    assert texts(first) == [("text.delta", "It works. ")]
    assert texts(chunker.flush()) == [("text.delta", "And so")]


def test_a_chinese_sentence_ends_without_a_space() -> None:
    chunker = parse_policy("sentence")
    assert chunker is not None
    assert texts(chunker.feed(frames_of([e.TextDelta(text=t) for t in ["好", "的。", "再"]]), now=0.0)) == [
        ("text.delta", "好的。")
    ]


def test_a_code_fence_is_kept_whole() -> None:
    chunker = parse_policy("entity")
    assert chunker is not None
    out = chunker.feed(frames_of([e.TextDelta(text=t) for t in ["``", "`py\n", "x = 1 \n", "``", "`", "\n"]]), now=0.0)
    assert texts(out) == [("text.delta", "```py\nx = 1 \n```\n")]


def test_held_text_is_due_within_the_limit_and_nothing_is_due_when_nothing_is_held() -> None:
    chunker = parse_policy("sentence")
    assert chunker is not None
    dues = [chunker.due]
    assert chunker.feed(frames_of([e.TextDelta(text="half")]), now=5.0) == []
    dues.append(chunker.due)
    assert len(chunker.flush()) == 1
    assert chunker.flush() == []
    dues.append(chunker.due)
    assert dues == [None, 5.0 + MAX_HOLD_S, None]


@pytest.mark.parametrize(
    "policy", ["", "words", "tokens", "tokens:0", "tokens:x", "interval:40", "interval:0ms", "auto:1"]
)
def test_an_unknown_policy_is_refused_with_the_known_ones(policy: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_policy(policy)
    assert "sentence" in (caught.value.hint or "")
