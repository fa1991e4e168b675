import json
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.client.frames import Arrived, Frame, Skipped, Snapshot, read_record, read_seq, read_snapshot
from headrace.client.retry import Retry
from headrace.client.session import Gap, Item, Session, Watchdog
from headrace.errors import ProtocolBroken, ServerUnreachable
from headrace.events import Event, Record, RunFinished, RunStarted, TextDelta, TextRetracted, TurnStarted
from headrace.messages import Message
from headrace.state import RunState, fold, initial

RUN = "run-1"


def record(seq: int, event: Any) -> Record:
    return Record(run_id=RUN, seq=seq, ts=seq, event=event)


def a_run(words: list[str]) -> list[Record]:
    question = RunStarted(agent="a", thread_id="t", input=(Message(role="user", content="?"),))
    said: list[Event] = [TextDelta(text=word) for word in words]
    events = [question, TurnStarted(turn=1, model="m", engine="e"), *said]
    events.append(RunFinished(status="completed", output="".join(words)))
    return [record(seq, event) for seq, event in enumerate(events, 1)]


def merged(records: list[Record], cuts: list[bool]) -> list[Arrived]:
    """Adjacent deltas joined where `cuts` does not say to cut."""
    frames: list[Arrived] = []
    for now, cut in zip(records, [*cuts, *[True] * len(records)], strict=False):
        last = frames[-1] if frames else None
        if not cut and last and isinstance(last.record.event, TextDelta) and isinstance(now.event, TextDelta):
            text = TextDelta(text=last.record.event.text + now.event.text)
            frames[-1] = Arrived(record=record(now.seq, text), n=last.n + 1)
        else:
            frames.append(Arrived(record=now))
    return frames


def taken(session: Session, frames: list[Frame]) -> list[Item]:
    return [item for item in map(session.take, frames) if item is not None]


def text_of(items: list[Item]) -> str:
    return "".join(i.event.text for i in items if isinstance(i, Record) and isinstance(i.event, TextDelta))


@given(st.lists(st.text(min_size=1), max_size=12), st.lists(st.booleans(), max_size=16))
def test_whatever_was_merged_the_text_and_the_state_are_those_of_the_records(
    words: list[str], cuts: list[bool]
) -> None:
    records = a_run(words)
    session = Session(RUN)
    items = taken(session, list(merged(records, cuts)))
    assert text_of(items) == "".join(words)
    assert session.state == fold(records, initial(RUN))
    assert (session.cursor, session.ended) == (len(records), True)


@given(st.integers(0, 9), st.integers(0, 9))
def test_records_that_come_again_are_dropped(first: int, back: int) -> None:
    records = a_run(list("abcdefg"))
    session = Session(RUN)
    items = taken(session, [Arrived(record=r) for r in records[:first]])
    items += taken(session, [Arrived(record=r) for r in records[max(0, first - back) :]])
    assert items == records


def test_a_gap_breaks_the_link_and_the_cursor_stays_at_the_last_good_record() -> None:
    records = a_run(list("abc"))
    session = Session(RUN)
    session.take(Arrived(record=records[0]))
    with pytest.raises(Gap):
        session.take(Arrived(record=records[2]))
    assert session.cursor == 1
    assert taken(session, [Arrived(record=r) for r in records[1:]]) == records[1:]


def test_the_same_gap_twice_is_the_servers_fault() -> None:
    records = a_run(list("abc"))
    session = Session(RUN)
    with pytest.raises(Gap):
        session.take(Arrived(record=records[2]))
    with pytest.raises(ProtocolBroken) as broken:
        session.take(Arrived(record=records[3]))
    assert not isinstance(broken.value, Gap)


def test_a_merged_frame_that_covers_too_few_is_a_gap_too() -> None:
    session = Session(RUN, after=2)
    with pytest.raises(Gap):
        session.take(Arrived(record=record(6, TextDelta(text="x")), n=3))
    assert session.take(Arrived(record=record(6, TextDelta(text="x")), n=4)) is not None


def test_a_merged_frame_that_begins_before_the_cursor_is_refused() -> None:
    session = Session(RUN, after=4)
    with pytest.raises(Gap):
        session.take(Arrived(record=record(6, TextDelta(text="abc")), n=3))


def test_filtered_streams_may_jump() -> None:
    records = a_run(list("abc"))
    session = Session(RUN, filtered=True)
    assert len(taken(session, [Arrived(record=records[0]), Arrived(record=records[-1])])) == 2
    assert not session.whole


def test_what_the_server_says_it_skipped_is_no_gap() -> None:
    records = a_run(list("abc"))
    session = Session(RUN)
    assert taken(session, [Arrived(record=records[0]), Skipped(seq=3), Arrived(record=records[3])]) == [
        records[0],
        records[3],
    ]


def test_a_snapshot_replaces_the_state_and_later_records_continue_it() -> None:
    records = a_run(list("abc"))
    session = Session(RUN, after=1)
    assert not session.whole
    snapshot = Snapshot(as_of_seq=4, state=fold(records[:4], initial(RUN)))
    items = taken(session, [snapshot, *(Arrived(record=r) for r in records[4:])])
    assert items == [snapshot, *records[4:]]
    assert session.state == fold(records, initial(RUN))
    assert session.whole


def test_the_terminal_record_after_a_snapshot_that_holds_it_still_ends_the_run() -> None:
    records = a_run(["a"])
    session = Session(RUN)
    state = fold(records, initial(RUN))
    items = taken(session, [Snapshot(as_of_seq=4, state=state), Arrived(record=records[-1])])
    assert items[-1] == records[-1]
    assert (session.ended, session.state) == (True, state)


def test_retracted_text_leaves_the_state() -> None:
    records = a_run(["wrong"])[:3]
    frames = [Arrived(record=r) for r in [*records, record(4, TextRetracted(turn=1, reason="failover"))]]
    session = Session(RUN)
    taken(session, [*frames, Arrived(record=record(5, TextDelta(text="right")))])
    assert session.state.text == "right"


def test_a_record_is_read_from_its_type_and_data() -> None:
    assert read_record(RUN, 7, "text.delta", b'{"text":"h\\u2028i","ts":5,"n":2}') == Arrived(
        record=Record(run_id=RUN, seq=7, ts=5, event=TextDelta(text="h\u2028i")), n=2
    )


def test_an_event_type_of_a_newer_server_moves_the_cursor_and_nothing_else() -> None:
    session = Session(RUN)
    assert session.take(read_record(RUN, 1, "mood.changed", b'{"mood":"good","ts":5}')) is None
    assert session.cursor == 1


@pytest.mark.parametrize("data", [b"", b"{", b'{"text":1,"ts":1}', b'{"ts":1}', b"[1]", b'{"text":"\xff"}'])
def test_data_that_cannot_be_read_is_a_broken_protocol(data: bytes) -> None:
    with pytest.raises(ProtocolBroken):
        read_record(RUN, 1, "text.delta", data)


@pytest.mark.parametrize("text", ["-1", "", "1.5", "abc", "²"])
def test_an_id_that_is_no_seq_is_a_broken_protocol(text: str) -> None:
    with pytest.raises(ProtocolBroken):
        read_seq(text)


def test_a_snapshot_is_read_whole_or_not_at_all() -> None:
    assert read_snapshot(b'{"as_of_seq":3,"state":{"run_id":"r","status":"queued","seq":3}}').state == RunState(
        run_id="r", status="queued", seq=3
    )
    with pytest.raises(ProtocolBroken):
        read_snapshot(json.dumps({"state": {"run_id": "r"}}).encode())


def widest(low: float, high: float) -> float:
    return high


def test_waits_grow_to_the_cap_and_start_anew_after_progress() -> None:
    retry = Retry(0.0, patience=None, uniform=widest)
    waits = [retry.wait(1000.0 * turn, reason="gone") for turn in range(7)]
    assert waits[:3] == [pytest.approx(0.3), pytest.approx(0.9), pytest.approx(2.7)]
    assert waits[-1] == 10.0
    retry.progress(1.0)
    assert retry.wait(1.0, reason="gone") == pytest.approx(0.3)


@settings(max_examples=200)
@given(outage=st.floats(0.2, 60.0), seed=st.integers())
def test_nobody_stays_away_for_half_as_long_again_as_the_server_did(outage: float, seed: int) -> None:
    """Where three times the last wait alone counts, one in a thousand comes ten seconds after an outage of two."""
    retry, now = Retry(0.0, patience=None, uniform=Random(seed).uniform), 0.0
    while now < outage:
        now += retry.wait(now, reason="gone")
    assert now <= outage * 1.5 + 0.3


def test_what_the_server_asked_for_is_waited_in_full_with_jitter_on_top() -> None:
    waits = {Retry(0.0).wait(0.0, reason="busy", at_least=5.0) for _ in range(20)}
    assert all(5.0 < wait <= 5.3 for wait in waits)
    assert len(waits) > 1


def test_a_heartbeat_renews_patience_but_not_the_waits() -> None:
    retry = Retry(0.0, patience=10.0, uniform=widest)
    retry.wait(9.0, reason="gone")
    retry.heard(9.0)
    assert retry.wait(18.0, reason="gone") == pytest.approx(0.9)


def test_patience_counts_from_when_the_server_was_last_heard() -> None:
    retry = Retry(0.0, patience=10.0)
    retry.progress(100.0)
    assert retry.wait(109.0, reason="gone") > 0
    with pytest.raises(ServerUnreachable, match="gone"):
        retry.wait(110.0, reason="gone")


def test_a_link_is_dead_after_two_and_a_half_silent_heartbeats() -> None:
    assert Watchdog(100.0).deadline == 137.5
    watchdog = Watchdog(100.0, heartbeat=2.0)
    assert watchdog.deadline == 105.0
    watchdog.heard(104.0)
    assert watchdog.deadline == 109.0
