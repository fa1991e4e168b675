"""Cases of cursors that point at nothing any more, and of ends that never came."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from harness import run_async, until
from headrace.agent.port import RunContext
from headrace.client import AsyncClient, Snapshot
from headrace.config import Config, LogConfig, ServerConfig, load
from headrace.errors import ConfigError
from headrace.events import RunFinished, RunStarted, TextDelta
from headrace.log.memory import MemoryLog
from headrace.log.ports import NewRun
from headrace.log.retention import Retention
from proxy import Proxy
from serving import Caller, FunctionAgent, Gate, config, count, parse, read_until, running

COUNT = FunctionAgent(count)


def keeping(records: int, path: Path | None = None) -> Config:
    """A configuration that keeps so few records of a run."""
    log = LogConfig(durability="memory" if path is None else "journal", path=str(path or ""), retain_records=records)
    return Config(server=ServerConfig(port=0, heartbeat=0.2, drain_grace=0.0), log=log)


def said(state: dict[str, Any]) -> str:
    return "".join(turn.get("text", "") for turn in state["turns"])


def check_gap(events: list[dict[str, Any]], *, text: str) -> None:
    """A snapshot before anything later, and the seqs after it without a hole."""
    assert events[0]["event"] == "run.snapshot"
    assert said(events[0]["state"]) == text
    assert events[0]["id"] == events[0]["as_of_seq"] == events[0]["state"]["seq"]
    assert all(event["event"] != "run.snapshot" for event in events[1:])


def test_with_two_records_kept_an_older_cursor_gets_a_snapshot_first_live_and_ended() -> None:
    async def scenario() -> None:
        gate = Gate()

        async def talking(context: RunContext) -> RunFinished:
            for word in ("one ", "two ", "three "):
                context.emit(TextDelta(text=word))
                await asyncio.sleep(0)
            return await gate(context)

        async with running(FunctionAgent(talking), settings=keeping(2)) as caller:
            run_id = await caller.start("x")
            path = f"/v1/runs/{run_id}/events?chunk=token"
            await gate.entered.wait()
            async with caller.stream(path, last_event_id="1") as answer:
                raw = await read_until(answer, b"before")
                gate.open.set()
                live = parse(raw + await answer.read())
            check_gap(live, text="one two three before ")
            assert [e["id"] for e in live] == [5, 6, 7]
            ended = await caller.events(path, last_event_id="1")
            check_gap(ended, text="one two three before after")
            assert [(e["event"], e["id"]) for e in ended] == [("run.snapshot", 7), ("run.finished", 7)]
            kept = await caller.events(path, last_event_id="5")
            assert [e["id"] for e in kept] == [6, 7]

    run_async(scenario())


def test_over_a_socket_too_a_gap_is_a_snapshot() -> None:
    async def scenario() -> None:
        async with running(COUNT, settings=keeping(2)) as caller, AsyncClient(caller.server.url) as client:
            state = await caller.finished("10")
            async with client.connect() as socket:
                followed = await socket.follow(state["run_id"], after=1)
                items = [item async for item in followed.events()]
            assert isinstance(items[0], Snapshot)
            assert (items[0].as_of_seq, items[0].state.text) == (state["seq"], said(state))
            assert items[-1].event == RunFinished(status="completed", output=said(state))  # type: ignore[union-attr]

    run_async(scenario())


def test_with_every_record_gone_but_the_last_a_gap_is_still_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog(retention=Retention(frames_age_s=0.0))
    monkeypatch.setattr("headrace.server.open_log", lambda config: log)

    async def scenario() -> None:
        async with running(COUNT) as caller:
            state = await caller.finished("10")
            await log.tidy()
            path = f"/v1/runs/{state['run_id']}/events"
            for since in (0, 1, 5, state["seq"] - 2):
                events = await caller.events(path, last_event_id=str(since))
                check_gap(events, text=said(state))
                assert [e["id"] for e in events] == [state["seq"], state["seq"]]
                assert events[-1]["event"] == "run.finished"

    run_async(scenario())


@pytest.mark.parametrize(
    ("key", "value"),
    [("log.retain_records", "0"), ("log.retain_records", "-1"), ("server.heartbeat", "0"), ("run.max_active", "0")],
)
def test_a_setting_that_no_run_could_live_with_is_refused(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=key):
        load(flags={key: value})


def test_the_end_is_not_filtered_out_by_a_client_that_drops_what_is_not_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = MemoryLog(retention=Retention(frames_age_s=0.0))
    monkeypatch.setattr("headrace.server.open_log", lambda config: log)

    async def scenario() -> None:
        async with running(COUNT) as caller:
            state = await caller.finished("120")
            await log.tidy()
            since = state["seq"] - 4
            events = await caller.events(f"/v1/runs/{state['run_id']}/events", last_event_id=str(since))
            assert [e["event"] for e in events if e["id"] > since][-1] == "run.finished"

    run_async(scenario())


@pytest.mark.parametrize("cursor", ["-1", "", "0", "3"])
def test_a_finished_run_of_an_earlier_server_is_replayed_to_its_end_and_the_stream_closes(
    tmp_path: Path, cursor: str
) -> None:
    async def scenario() -> None:
        async with running(COUNT, settings=config(tmp_path)) as caller:
            state = await caller.finished("5")
        async with running(COUNT, settings=config(tmp_path)) as caller:
            path = f"/v1/runs/{state['run_id']}/events?chunk=token"
            events = await caller.events(path, last_event_id=cursor)
            assert [e["id"] for e in events] == list(range(max(int(cursor or 0), 0) + 1, state["seq"] + 1))
            assert events[-1]["event"] == "run.finished"

    run_async(scenario())


def test_the_end_outlives_trimming_and_a_restart_with_its_real_seq(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(COUNT, settings=keeping(2, tmp_path)) as caller:
            state = await caller.finished("50")
        async with running(COUNT, settings=keeping(2, tmp_path)) as caller:
            path = f"/v1/runs/{state['run_id']}/events"
            events = await caller.events(path, last_event_id="7")
            check_gap(events, text=said(state))
            assert [(e["event"], e["id"]) for e in events] == [("run.snapshot", 54), ("run.finished", 54)]
            assert (await caller.get(path, last_event_id="54"))[0] == 204
            assert (await caller.get(path, last_event_id="55"))[1]["code"] == "invalid_cursor"

    run_async(scenario())


def test_the_last_record_can_be_had_again_and_again() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with running(FunctionAgent(gate)) as caller:
            run_id = await caller.start("x")
            path = f"/v1/runs/{run_id}/events?chunk=token"
            async with caller.stream(path) as answer:
                await read_until(answer, b"before")  # dropped just before the end
            gate.open.set()
            await until(lambda: not caller.server.supervisor.active)
            for _ in range(3):
                events = await caller.events(path, last_event_id="3")
                assert [(e["event"], e["output"]) for e in events] == [("run.finished", "before after")]

    run_async(scenario())


def test_a_snapshot_is_not_followed_by_text_that_it_already_holds() -> None:
    """A chunking policy was holding words when the log ran away from it."""

    async def scenario() -> None:
        words = [f"w{number} " for number in range(6000)]

        async def rushing(context: RunContext) -> RunFinished:
            context.emit(TextDelta(text="No end "))
            await asyncio.sleep(0.05)
            for word in words:  # more than a follower is given in one tick, and far more than is kept
                context.emit(TextDelta(text=word))
            await asyncio.sleep(0.05)
            context.emit(TextDelta(text="at last."))
            return RunFinished(status="completed", output="No end " + "".join(words) + "at last.")

        async with running(FunctionAgent(rushing), settings=keeping(10)) as caller:
            run_id = await caller.start("x")
            events = await caller.events(f"/v1/runs/{run_id}/events?chunk=sentence")
            snapshots = [at for at, e in enumerate(events) if e["event"] == "run.snapshot"]
            assert snapshots, "nothing was overtaken: the test proves nothing"
            ids = [event["id"] for event in events]
            assert ids == sorted(ids)
            shown = said(events[snapshots[-1]]["state"])
            assert shown + "".join(e.get("text", "") for e in events[snapshots[-1] + 1 :]) == events[-1]["output"]

    run_async(scenario())


def test_a_suffix_is_streamed_through_a_proxy_and_a_fresh_client_has_the_state() -> None:
    async def scenario() -> None:
        async with (
            running(FunctionAgent(count, "docs")) as caller,
            Proxy(caller.server.port) as proxy,
            aiohttp.ClientSession() as http,
        ):
            _, response = await caller.post("/v1/responses", {"model": "docs", "input": "30", "background": True})
            through = Caller(_At(proxy.url), http)  # type: ignore[arg-type]
            path = f"/v1/responses/{response['id']}?stream=true&starting_after=9"
            async with through.stream(path) as answer:
                assert answer.headers["content-type"].startswith("text/event-stream")
                raw = (await answer.read()).replace(b": hb\n", b"")
            data = [line[6:] for line in raw.split(b"\n") if line.startswith(b"data: ")]
            events = [msgspec.json.decode(line) for line in data]
            assert [e["sequence_number"] for e in events] == list(range(10, 10 + len(events)))
            assert events[-1]["type"] == "response.completed"

    run_async(scenario())


class _At:
    """What `Caller` needs of a server behind an address."""

    def __init__(self, url: str) -> None:
        self.url = url


def test_seqs_follow_the_order_of_appending_even_when_the_clock_goes_back() -> None:
    async def scenario() -> None:
        stamps = iter(range(2_000_000_000_000, 0, -1000))
        async with MemoryLog(clock=lambda: next(stamps)) as log:
            created = await log.create(
                NewRun(run_id="r", tenant="t"), RunStarted(agent="a", thread_id="t", input=()), claim=True
            )
            assert created.claim is not None
            for number in range(20):
                await log.append("r", [TextDelta(text=str(number))], fence=created.claim.fence)
            records = await log.read("r", after=10)
            assert [record.seq for record in records] == list(range(11, 22))
            assert records[0].ts > records[-1].ts
            assert [r.event.text for r in records if isinstance(r.event, TextDelta)] == [str(n) for n in range(9, 20)]

    run_async(scenario())
