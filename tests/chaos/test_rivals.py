"""How what rivals show is read, and judged. The rivals themselves are not installed by the tests."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from aiohttp import ClientSession, web

from chaos.event_source import ServerSent, read
from chaos.evidence import Blow, Followed, RunEvidence
from chaos.plan import PlannedTurn, RunPlan, plan_run
from chaos.rivals import agno, langgraph
from chaos.rivals.model import answer_to, complete, deltas
from chaos.row import Tally, table
from chaos.system import Final, Seen
from chaos.verdict import Finding, judge_run, said
from harness import run_async

PLAN = plan_run(7, "r")


def asked(plan: RunPlan, *said_before: PlannedTurn) -> list[dict[str, Any]]:
    """The conversation after some turns, as an OpenAI-compatible server is sent it."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "x"}, {"role": "user", "content": plan.question}]
    for turn in said_before:
        calls = [{"id": c.label, "function": {"name": c.tool, "arguments": c.arguments}} for c in turn.calls]
        messages.append({"role": "assistant", "content": turn.text, "tool_calls": calls})
        messages += [{"role": "tool", "tool_call_id": c.label, "content": "done"} for c in turn.calls]
    return messages


def test_the_model_says_one_turn_after_the_other() -> None:
    for number, turn in enumerate(PLAN.turns):
        assert answer_to(asked(PLAN, *PLAN.turns[:number])) == (PLAN, turn)


def test_the_model_reads_a_question_in_parts() -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": PLAN.question}]}]
    assert answer_to(parts) == (PLAN, PLAN.turns[0])


def test_the_model_served_says_the_plan_and_names_calls_by_their_labels() -> None:
    async def play() -> list[dict[str, Any]]:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", complete)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/chat/completions"
            async with ClientSession() as http, http.post(url, json={"model": "m", "messages": asked(PLAN)}) as answer:
                return [json.loads(event.data) async for event in read(answer.content) if event.data != b"[DONE]"]
        finally:
            await runner.cleanup()

    choices = [chunk["choices"][0] for chunk in run_async(play())]
    sent = [choice["delta"] for choice in choices]
    assert sent[:-1] == list(deltas(PLAN.turns[0]))
    assert "".join(delta.get("content", "") for delta in sent) == PLAN.turns[0].text
    ids = [call["id"] for delta in sent for call in delta.get("tool_calls", ())]
    assert ids == [call.label for call in PLAN.turns[0].calls]
    assert choices[-1]["finish_reason"] == "tool_calls"


def agno_event(index: int | None, kind: str, **data: object) -> ServerSent:
    fields = data if index is None else {"event_index": index, **data}
    return ServerSent("", kind, json.dumps(fields).encode())


def test_what_agnos_resume_says_of_itself_is_no_record() -> None:
    assert agno.record(agno_event(None, "catch_up", missed_events=3)) is None


def test_an_agno_run_that_starts_again_is_taken_to_have_said_nothing_so_far() -> None:
    events = [
        agno_event(0, "RunStarted", model="scripted-41"),
        agno_event(1, "RunContent", content="水渠 "),
        agno_event(5, "RunStarted", model="scripted-42"),
        agno_event(6, "RunContent", content="水渠 "),
        agno_event(7, "RunContent", content=None),
        agno_event(8, "RunContent", content="goes on"),
    ]
    records = [seen for event in events if (seen := agno.record(event)) is not None]
    assert said(records) == "水渠 goes on"
    assert [seen.worker for seen in records if seen.worker] == [41, 42]
    assert not any(seen.terminal for seen in records)


@pytest.mark.parametrize("kind", ["RunCompleted", "RunError", "RunCancelled"])
def test_agnos_ends_are_terminal(kind: str) -> None:
    seen = agno.record(agno_event(9, kind, content="all of it"))
    assert seen is not None
    assert seen.terminal


def chunk(text: str, *, at: str, model: str = "scripted-41") -> dict[str, Any]:
    message = {"type": "AIMessageChunk", "content": text}
    return {"event": "messages", "id": at, "data": [message, {"ls_model_name": model}]}


def values(*texts: str, at: str) -> dict[str, Any]:
    messages = [{"type": "human", "content": "x"}, *({"type": "ai", "content": text} for text in texts)]
    return {"event": "values", "id": at, "data": {"messages": messages}}


def langgraph_records(*parts: dict[str, Any], numbers: langgraph.Numbers | None = None) -> list[Seen]:
    numbers = numbers or langgraph.Numbers()
    return [langgraph.record(part, numbers) for part in parts]


def test_langgraphs_state_replaces_what_was_said() -> None:
    records = langgraph_records(
        chunk("one ", at="1000-0"),
        values("one ", at="1001-0"),
        chunk("tw", at="1002-0"),  # its server died here
        values("one ", at="2000-0"),
        chunk("two", at="2001-0", model="scripted-42"),
    )
    assert said(records) == "one two"
    assert [seen.worker for seen in records if seen.kind == "text.delta"] == [41, 41, 42]


def test_langgraphs_records_of_one_millisecond_have_numbers_of_their_own() -> None:
    a, b = chunk("a", at="1000-0"), chunk("b", at="1000-0")
    numbers = langgraph.Numbers()
    first, second = langgraph_records(a, b, numbers=numbers)
    assert first.seq < second.seq < langgraph_records(chunk("c", at="1001-0"), numbers=numbers)[0].seq
    assert [seen.seq for seen in langgraph_records(b, a, numbers=numbers)] == [second.seq, first.seq]


def test_a_langgraph_result_settles_its_call() -> None:
    result = {"event": "messages", "id": "1-0", "data": [{"type": "tool", "content": "x", "tool_call_id": "r/1.0"}, {}]}
    result_seen, other = langgraph_records(result, chunk("a", at="2-0"))
    assert (langgraph.settled(result_seen), langgraph.settled(other)) == ("r/1.0", None)


def test_what_langgraphs_client_raises_is_raised_here() -> None:
    assert langgraph.result_of({"id": 1, "result": "x"}) == "x"
    with pytest.raises(langgraph.ClientError, match="not found"):
        langgraph.result_of({"id": 1, "error": "run not found"})


def judged(records: Sequence[Seen], shown: Sequence[Seen], *, dense: bool) -> list[Finding]:
    final = Final(status="completed", text=PLAN.text, terminals=1, records=records, dense=dense)
    followed = [Followed(client="x", seen=shown)]
    return judge_run(RunEvidence(run_id="r", plan=PLAN, followed=followed, final=final))


def test_a_hole_is_a_loss_only_where_numbers_are_dense() -> None:
    records = [Seen(seq=3, kind="RunStarted", at=0), Seen(seq=9, kind="text.replaced", at=0, text=PLAN.text)]
    assert judged(records, records, dense=False) == []
    assert [finding.count for finding in judged(records, records, dense=True)] == [5]
    assert [finding.fault for finding in judged(records, records[1:], dense=False)] == ["lost"]


def test_a_log_without_times_tells_recovery_as_its_reader_saw_it() -> None:
    shown = [
        Seen(seq=1, kind="a", at=10.0, worker=41),
        Seen(seq=2, kind="b", at=11.1),  # under way when its writer died
        Seen(seq=3, kind="c", at=15.0, worker=42),
    ]
    tally = Tally()
    final = Final(status="completed", text=PLAN.text, terminals=1, records=[Seen(seq=3, kind="c", at=0)], dense=False)
    death = Blow(kind="kill", role="instance", target="x", pid=41, at=11.0, until=12.0)
    run = RunEvidence(run_id="r", plan=PLAN, followed=[Followed(client="x", seen=shown)], final=final)
    tally.add(run, [death])
    assert [one.seconds for one in tally.recovered] == [pytest.approx(4.0)]


def test_where_nothing_recovered_the_table_shows_no_time() -> None:
    row = Tally().row("x", instances=1, seconds=1.0, kills=0, cuts=0)
    assert "| – | 0.0 | 0.0 |" in table([row])
