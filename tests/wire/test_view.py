from collections.abc import Sequence

import pytest

from headrace.errors import InvalidRequest
from headrace.events import Event, RunFinished, TextDelta, TurnFinished, TurnStarted
from headrace.wire.codec import encode_record, frame_seq, frame_type
from headrace.wire.view import View

EVENTS: list[Event] = [
    TurnStarted(turn=1, model="m", engine="e"),
    TextDelta(text="one "),
    TextDelta(text="two"),
    TurnFinished(turn=1, finish_reason="stop"),
    RunFinished(status="completed"),
]
FRAMES = [encode_record(seq, 1764424800000 + seq, event) for seq, event in enumerate(EVENTS, 1)]


def kinds(frames: Sequence[bytes]) -> list[str]:
    return [frame_type(frame) for frame in frames]


@pytest.mark.parametrize("policy", ["auto", "token"])
def test_a_plain_view_passes_a_single_frame_as_it_is(policy: str) -> None:
    view = View(policy)
    assert view.plain
    for frame in FRAMES:
        assert list(view.frames([frame], now=0.0)) == [frame]
    assert view.due is None
    assert view.flush() == []


def test_auto_merges_what_has_piled_up_and_token_does_not() -> None:
    assert [frame_seq(frame) for frame in View("auto").frames(FRAMES, now=0.0)] == [1, 3, 4, 5]
    assert View("token").frames(FRAMES, now=0.0) == FRAMES


def test_types_leave_out_everything_else_but_the_end() -> None:
    view = View(types=["turn.started"])
    assert not view.plain
    assert kinds(view.frames(FRAMES, now=0.0)) == ["turn.started", "run.finished"]
    assert view.frames(FRAMES[1:2], now=0.0) == []


def test_a_policy_cuts_what_the_types_have_left() -> None:
    view = View("sentence", ["text.delta"])
    assert view.frames(FRAMES[:4], now=5.0) == []
    assert view.due == 6.0
    assert kinds(view.flush()) == ["text.delta"]
    assert view.due is None


@pytest.mark.parametrize(("policy", "types"), [("words", ()), ("auto", ("text.delta", "nonsense"))])
def test_an_unknown_policy_or_type_is_refused(policy: str, types: Sequence[str]) -> None:
    with pytest.raises(InvalidRequest):
        View(policy, types)
