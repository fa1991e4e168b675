"""The client's side of the WebSocket, without a socket; and of SSE, byte by byte."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.follow import take_event
from headrace.client.hub import Answered, ComeBack, Ended, Got, Hub, Outcome, Say
from headrace.client.session import Session
from headrace.errors import Draining, HeadraceError, LogUnavailable, ProtocolBroken, UnknownRun
from headrace.events import Event, Record, RunFinished, TextDelta, TurnStarted
from headrace.state import fold, initial
from headrace.wire.codec import encode_record
from headrace.wire.connection import answer_frame, error_frame, going_away_frame, record_frame, snapshot_frame
from headrace.wire.sse import SSEDecoder

EVENTS: list[Event] = [
    TurnStarted(turn=1, model="m", engine="e"),
    TextDelta(text="Hé"),
    TextDelta(text="\u2028\n\r\n"),
    RunFinished(status="completed", output="x"),
]
FRAMES = [encode_record(seq, 1000 + seq, event) for seq, event in enumerate(EVENTS, 1)]


def records(run_id: str) -> list[Record]:
    return [Record(run_id=run_id, seq=seq, ts=1000 + seq, event=event) for seq, event in enumerate(EVENTS, 1)]  # type: ignore[arg-type]


def messages(*frames: bytes) -> str:
    return b"\n".join(frames).decode()


def said(outcomes: list[Outcome] | Say) -> list[dict[str, Any]]:
    listed = [outcomes] if isinstance(outcomes, Say) else outcomes
    return [json.loads(outcome.text) for outcome in listed if isinstance(outcome, Say)]


def following(hub: Hub, session: Session) -> None:
    """Follow, and let the server agree."""
    (command,) = said(hub.follow(session))
    assert hub.receive(messages(answer_frame("following", command["ref"], run_id=session.run_id))) == []


@given(st.lists(st.integers(1, 400), max_size=20))
def test_an_sse_stream_cut_anywhere_gives_each_record_once(cuts: list[int]) -> None:
    stream = b"retry: 500\n" + b": hb\n".join(FRAMES)
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    decoder, session = SSEDecoder(), Session("r")
    events = [e for a, b in pairwise(places) for e in decoder.feed(stream[a:b])]
    assert [take_event(session, event) for event in events] == records("r")
    assert session.ended


def test_an_sse_stream_byte_by_byte_gives_each_record_once_and_none_early() -> None:
    decoder, session, got = SSEDecoder(), Session("r"), []
    for byte in b"".join(FRAMES):
        for event in decoder.feed(bytes([byte])):
            got.append(take_event(session, event))
            assert session.cursor == len(got)
    assert got == records("r")


def test_at_every_byte_a_new_connection_after_the_cursor_completes_the_run() -> None:
    stream = b"".join(FRAMES)
    for cut in range(len(stream) + 1):
        session = Session("r")
        got = [take_event(session, event) for event in SSEDecoder().feed(stream[:cut])]
        rest = b"".join(FRAMES[session.cursor :])
        got += [take_event(session, event) for event in SSEDecoder().feed(rest)]
        assert got == records("r")


def test_records_of_many_runs_reach_their_own_and_the_last_one_ends_each() -> None:
    hub, sessions = Hub(), [Session("a"), Session("b")]
    for session in sessions:
        following(hub, session)
    mixed = [record_frame(session.run_id, frame) for frame in FRAMES for session in sessions]
    outcomes = hub.receive(messages(*mixed))
    for session in sessions:
        assert [o.item for o in outcomes if isinstance(o, Got) and o.run_id == session.run_id] == records(
            session.run_id
        )
        assert Ended(session.run_id) in outcomes
        assert session.state == fold(records(session.run_id), initial(session.run_id))


def test_until_a_follow_is_answered_records_belong_to_an_earlier_one_and_are_ignored() -> None:
    hub, session = Hub(), Session("a")
    (command,) = said(hub.follow(session))
    assert hub.receive(messages(record_frame("a", FRAMES[2]))) == []
    hub.receive(messages(answer_frame("following", command["ref"], run_id="a")))
    assert hub.receive(messages(record_frame("a", FRAMES[0]))) == [Got("a", records("a")[0])]


def test_the_answer_to_an_older_follow_opens_nothing() -> None:
    hub, session = Hub(), Session("a")
    (older,) = said(hub.follow(session))
    hub.follow(session)
    hub.receive(messages(answer_frame("following", older["ref"], run_id="a")))
    assert hub.receive(messages(record_frame("a", FRAMES[0]))) == []


def test_after_a_gap_the_run_is_followed_again_from_the_cursor() -> None:
    hub, session = Hub(), Session("a")
    following(hub, session)
    outcomes = hub.receive(messages(record_frame("a", FRAMES[0]), record_frame("a", FRAMES[2])))
    (again,) = said(outcomes)
    assert (again["type"], again["run_id"], again["after"]) == ("follow", "a", 1)
    hub.receive(messages(answer_frame("following", again["ref"], run_id="a")))
    rest = hub.receive(messages(*(record_frame("a", frame) for frame in FRAMES[1:])))
    assert [o.item for o in rest if isinstance(o, Got)] == records("a")[1:]


def test_the_same_gap_twice_ends_this_run_and_no_other() -> None:
    hub, broken, well = Hub(), Session("a"), Session("b")
    following(hub, broken)
    following(hub, well)
    (again,) = said(hub.receive(messages(record_frame("a", FRAMES[2]))))
    hub.receive(messages(answer_frame("following", again["ref"], run_id="a")))
    (ended,) = hub.receive(messages(record_frame("a", FRAMES[2])))
    assert isinstance(ended, Ended)
    assert isinstance(ended.error, ProtocolBroken)
    assert hub.receive(messages(record_frame("b", FRAMES[0]))) == [Got("b", records("b")[0])]


def test_a_new_connection_is_told_everything_that_is_still_open() -> None:
    hub, session = Hub(), Session("a")
    following(hub, session)
    hub.receive(messages(record_frame("a", FRAMES[0])))
    hub.command("start", run={"input": "hi"}, key="k")
    hub.command("steer", run_id="a", text="x", key="l")
    start, steer, follow = said(list(hub.connected()))
    assert (start["type"], start["key"]) == ("start", "k")
    assert (steer["type"], steer["key"]) == ("steer", "l")
    assert (follow["type"], follow["after"]) == ("follow", 1)


def test_an_answer_settles_its_command_once() -> None:
    hub = Hub()
    ref, _ = hub.command("start", run={"input": "hi"})
    frame = messages(answer_frame("started", ref, run_id="a"))
    assert hub.receive(frame) == [Answered(ref, run_id="a")]
    assert hub.receive(frame) == []
    assert hub.connected() == []


@pytest.mark.parametrize("error", [UnknownRun("no run", hint="look"), Draining("going")])
def test_a_refusal_goes_to_whom_it_names_and_a_retryable_one_means_come_back(error: HeadraceError) -> None:
    hub, session = Hub(), Session("a")
    (command,) = said(hub.follow(session))
    (outcome,) = hub.receive(messages(error_frame(error, command["ref"])))
    if error.retryable:
        assert outcome == ComeBack("going")
        assert said(list(hub.connected()))[0]["type"] == "follow"
    else:
        assert isinstance(outcome, Ended)
        assert isinstance(outcome.error, UnknownRun)
        assert outcome.error.hint == "look"


def test_an_error_that_names_a_run_ends_this_run_and_no_other() -> None:
    hub, broken, well = Hub(), Session("a"), Session("b")
    following(hub, broken)
    following(hub, well)
    (ended,) = hub.receive(messages(error_frame(LogUnavailable("no disk"), run_id="a")))
    assert isinstance(ended, Ended)
    assert (ended.run_id, type(ended.error)) == ("a", LogUnavailable)
    assert hub.receive(messages(record_frame("b", FRAMES[0]))) == [Got("b", records("b")[0])]
    assert hub.receive(messages(error_frame(LogUnavailable("no disk"), run_id="a"))) == []


def test_an_error_of_an_earlier_following_is_ignored_until_the_follow_is_answered() -> None:
    hub, session = Hub(), Session("a")
    (command,) = said(hub.follow(session))
    assert hub.receive(messages(error_frame(LogUnavailable("no disk"), run_id="a"))) == []
    hub.receive(messages(answer_frame("following", command["ref"], run_id="a")))
    assert hub.receive(messages(record_frame("a", FRAMES[0]))) == [Got("a", records("a")[0])]


def test_a_command_that_fails_on_its_run_is_told_so_and_the_connection_stays() -> None:
    hub = Hub()
    ref, _ = hub.command("steer", run_id="a", text="x", key="k")
    (answered,) = hub.receive(messages(error_frame(LogUnavailable("no disk"), ref, run_id="a")))
    assert isinstance(answered, Answered)
    assert (answered.ref, type(answered.error)) == (ref, LogUnavailable)
    assert hub.connected() == []


def test_going_away_means_come_back() -> None:
    assert hub_outcomes(going_away_frame()) == [ComeBack("the server is going away")]


def test_a_snapshot_is_taken_and_the_end_of_a_finished_run_ends() -> None:
    hub, session = Hub(), Session("a", after=1)
    following(hub, session)
    state = fold(records("a"), initial("a"))
    outcomes = hub.receive(messages(snapshot_frame(state), record_frame("a", FRAMES[-1])))
    assert [type(outcome) for outcome in outcomes] == [Got, Got, Ended]
    assert session.state == state
    (command,) = said(hub.follow(Session("a", after=4)))
    assert hub.receive(messages(answer_frame("ended", command["ref"], run_id="a", seq=4))) == [Ended("a")]


def test_frames_of_a_newer_server_and_pongs_mean_nothing() -> None:
    assert hub_outcomes(answer_frame("pong", None), answer_frame("mood", None, level=3)) == []


@pytest.mark.parametrize("text", ["{", "[]", '{"type":1}', '{"type":"record","seq":"x"}'])
def test_a_frame_that_cannot_be_read_is_a_broken_protocol(text: str) -> None:
    with pytest.raises(ProtocolBroken):
        Hub().receive(text)


def hub_outcomes(*frames: bytes) -> list[Outcome]:
    return Hub().receive(messages(*frames))
